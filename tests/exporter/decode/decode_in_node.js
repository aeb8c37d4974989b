// Decodes with a graph in Node: node decode_in_node.js PACKAGE GRAPH.onnx < cases.json > results.json
// PACKAGE is onnxruntime-node or onnxruntime-web; a case has src, mask (rows of numbers) and numbers by name.
const fs = require('fs');
const path = require('path');
const ort = require(process.argv[2]);

const tensor = (type, values, dims) => new ort.Tensor(type, values, dims);
const ids = (values, dims) => tensor('int64', BigInt64Array.from(values.map(BigInt)), dims);

async function main() {
  if (process.argv[2].endsWith('web')) ort.env.wasm.numThreads = 1;
  ort.env.logLevel = 'error';
  const options = {logSeverityLevel: 3};
  const weights = path.join(path.dirname(process.argv[3]), 'weights.bin');
  if (process.argv[2].endsWith('web') && fs.existsSync(weights)) {  // a browser has no folder to look in
    options.externalData = [{path: 'weights.bin', data: new Uint8Array(fs.readFileSync(weights))}];
  }
  const session = await ort.InferenceSession.create(process.argv[3], options);
  const results = [];
  for (const {src, mask, numbers} of JSON.parse(fs.readFileSync(0))) {
    const dims = [src.length, src[0].length];
    const given = {
      src: ids(src.flat(), dims),
      src_key_padding_mask: tensor('bool', Uint8Array.from(mask.flat().map(Number)), dims),
    };
    for (const [name, value] of Object.entries(numbers)) {
      if (!session.inputNames.includes(name)) continue;  // greedy takes fewer
      given[name] = name === 'length_penalty' ? tensor('float32', Float32Array.from([value]), []) : ids([value], []);
    }
    const found = await session.run(given);
    const listed = {inputs: session.inputNames};
    for (const name of ['tokens', 'lengths', 'scores']) listed[name] = Array.from(found[name].data).map(Number);
    results.push(listed);
  }
  console.log(JSON.stringify(results));
}

main();
