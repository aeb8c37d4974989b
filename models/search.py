"""Greedy and beam search in plain PyTorch: the reference for every other decode. It is written to be clear, not fast.

The semantics are those of CTranslate2 (https://github.com/OpenNMT/CTranslate2) with its default ``patience`` of 1, so
ids and scores agree with it. ``B`` is the number of beams.

* **Start.** Every sentence starts with one hypothesis of score 0, which holds the start token.
* **Step.** The score of a candidate is the score of its hypothesis plus the log-softmax of its token. Of the candidates
  of all hypotheses and tokens the ``2 B`` best are ranked. Of equal scores the earlier hypothesis is first, then the
  smaller id.
* **Finished.** A candidate among the first ``B`` that is the end token has finished: it leaves the beam and is kept as
  a result. A candidate with the end token at a lower rank is dropped. The beam continues with the first ``B``
  candidates that are *not* the end token. There are always enough: of ``2 B`` candidates at most ``B`` are the end
  token, one for each hypothesis. (The best candidate of the lower half takes the place of the first one that finished,
  and so on. This order matters only when scores are equal.)
* **Length.** The score of a result is ``score / length ** length_penalty``, where the length includes the end token.
  So 0 gives the sum of the log-probabilities, 1 gives their mean, and larger values favour long results.
* **Stop.** A sentence is done when it has ``B`` results. It can have more, because several candidates may finish in one
  step. With a penalty of 0 no later result can beat the best one: then a sentence is done when a candidate of rank 1
  has finished, in this step or an earlier one, and it has ``num_hypotheses`` results. After ``max_length`` steps the
  first ``B`` candidates become results, with or without the end token. A sentence that is done leaves the batch.
* **min_length.** In the first ``min_length`` steps the end token cannot be chosen: its logit is set to -inf before the
  softmax.
* **Results** are ranked by their scores. Of equal scores the result that was kept earlier is first.
* **Greedy search** has one beam: it takes the best token in every step, until the first end token.

A source that is all padding has a result too: attention to it is zero, so the result depends on the decoder alone.
CTranslate2 gives an empty result for an empty source, without running the model.
"""

import math
from typing import List, Optional, Tuple

import torch
from torch import Tensor, nn

from .cached import CachedDecoder
from .ranking import best_of, rows_of, step_margin, successors
from .sequence import SequenceModel, source_embedding

#: The default of ``max_length``, if the model has as many positions.
DEFAULT_MAX_LENGTH = 256


class SourceEncoder(nn.Module):
    """``model.encode`` as a module, so that an exported file has no part of the decoder. Its modules are shared."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.token_embedding = source_embedding(model)
        self.pos_embedding = model.pos_embedding
        self.encoder = model.my_transformer.encoder

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        """``src [N, S]`` int64, ``src_key_padding_mask [N, S]`` (True = padding) -> memory ``[N, S, E]``."""
        embedded = self.pos_embedding(self.token_embedding(src.transpose(0, 1)))
        return self.encoder(embedded, src_key_padding_mask=src_key_padding_mask).transpose(0, 1)


class Generator(nn.Module):
    """Greedy and beam search from ids to ids with ``model``, as described at the top of this file. It can be scripted.

    Letters: ``N`` sentences, ``S`` source length, ``B`` beams, ``n`` results for each sentence, ``L`` length of the
    longest result, ``V`` target vocabulary. Start, end and padding ids are those of the model's configuration.

    All weights are shared with the model, except the fused ones: see :class:`~mytx.models.cached.CachedDecoder`.

    Args:
        model: a translation or couplet model. It is not changed.

    Raises:
        ValueError: if the model has no decoder layers.
    """

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        config = model.config
        self.encoder = SourceEncoder(model)
        self.decoder = CachedDecoder(model)
        self.src_vocab_size = config.src_vocab_size
        self.tgt_vocab_size = config.tgt_vocab_size
        self.positions = int(model.pos_embedding.pe.size(0))
        self.default_max_length = min(DEFAULT_MAX_LENGTH, self.positions)
        self.pad_id = config.pad_id
        self.bos_id = config.bos_id
        self.eos_id = config.eos_id
        self.training = model.training

    def forward(
        self,
        src: Tensor,
        src_key_padding_mask: Optional[Tensor] = None,
        max_length: Optional[int] = None,
        min_length: int = 0,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        num_hypotheses: int = 1,
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """The ``n`` best results for each sentence, best first.

        Args:
            src: int64 ``[N, S]``.
            src_key_padding_mask: bool ``[N, S]``, True = padding; None means no padding.
            max_length: largest number of steps, and so of tokens in a result, with the end token; None means 256, or
                the number of positions if that is smaller.
            min_length: smallest number of tokens in a result, without the end token.
            num_beams: B.
            length_penalty: 0 or more; see the top of this file.
            num_hypotheses: n, at most B.

        Returns:
            Ids, int64 ``[N, n, L]``, without start and end tokens, padded with the padding id; their lengths, int64
            ``[N, n]``, which may be 0; their scores ``[N, n]`` in the dtype of the model.

        Raises:
            ValueError: if an argument does not fit, with its value and the limit; if the model is in training mode.
        """
        tokens, lengths, scores, _ = self.search(
            src, src_key_padding_mask, max_length, min_length, num_beams, length_penalty, num_hypotheses
        )
        return tokens, lengths, scores

    @torch.jit.export
    def search(
        self,
        src: Tensor,
        src_key_padding_mask: Optional[Tensor] = None,
        max_length: Optional[int] = None,
        min_length: int = 0,
        num_beams: int = 1,
        length_penalty: float = 1.0,
        num_hypotheses: int = 1,
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """The results of :meth:`forward`, and for each sentence its margin, float64 ``[N]``.

        The margin is the smallest difference between two scores that decided something: which candidates continued,
        which finished, which results were returned and in what order. An implementation whose scores are off by less
        than half of the margin must return the same ids. If the margin is smaller than twice the rounding error of the
        scores, the two results tie and either is right.
        """
        steps = self.default_max_length if max_length is None else max_length
        padding = torch.zeros_like(src, dtype=torch.bool) if src_key_padding_mask is None else src_key_padding_mask
        self._check(src, padding, steps, min_length, num_beams, length_penalty, num_hypotheses)
        with torch.no_grad():
            memory = self.encoder(src, padding)
            cross = self.decoder.cross(memory, padding)
            alive = [i for i in range(src.size(0))]  # noqa: C416 (TorchScript has no list(range))
            no_ids: List[Tensor] = []
            no_scores: List[Tensor] = []
            kept = [no_ids[:] for _ in alive]  # copies: TorchScript needs a type for []
            kept_scores = [no_scores[:] for _ in alive]
            top_finished = [False for _ in alive]
            margins = [math.inf for _ in alive]

            past = self.decoder.empty(len(alive))
            history = src.new_full([len(alive), 1, 1], self.bos_id)  # [N, width, t + 1]; width is 1, after a step B
            total = memory.new_zeros([len(alive), 1])  # [N, width]
            for step in range(steps):
                width = total.size(1)
                logits, past = self.decoder.step(history[:, :, -1].reshape(-1, 1), past, cross, padding)
                if step < min_length:
                    logits[:, self.eos_id] = -math.inf
                added = torch.log_softmax(logits, dim=-1).view(len(alive), width, -1)
                # One more candidate than the search needs: for the margin.
                count = min(2 * num_beams + 1, width * self.tgt_vocab_size)
                score, index = best_of((total.unsqueeze(2) + added).flatten(1), count)
                origin = torch.div(index, self.tgt_vocab_size, rounding_mode="floor")
                token = index % self.tgt_vocab_size
                candidates = torch.cat([rows_of(history, origin), token.unsqueeze(2)], dim=2)
                ended: List[List[bool]] = (token == self.eos_id).tolist()
                raw: List[List[float]] = score.tolist()
                length_factor = torch.full_like(score, float(step + 1)).pow(length_penalty)
                final = (score / length_factor).double()

                stay: List[int] = []  # places in the batch of the sentences that continue
                follow: List[int] = []  # candidates that continue, B for each place
                for place, sentence in enumerate(alive):
                    ends, last = ended[place], step == steps - 1
                    for rank in range(num_beams):
                        if ends[rank] or last:
                            length = candidates.size(2) - int(ends[rank])
                            kept[sentence].append(candidates[place, rank, 1:length])
                            kept_scores[sentence].append(final[place, rank])
                            top_finished[sentence] = top_finished[sentence] or rank == 0
                    enough = len(kept[sentence]) >= num_beams
                    if length_penalty == 0.0:
                        enough = top_finished[sentence] and len(kept[sentence]) >= num_hypotheses
                    done = last or enough
                    margin = step_margin(raw[place], ends, num_beams, last, done, length_penalty == 0.0)
                    margins[sentence] = min(margins[sentence], margin)
                    if not done:
                        stay.append(place)
                        follow.extend(successors(ends, num_beams))

                if len(stay) == 0:
                    break
                places = torch.tensor(stay, dtype=torch.int64, device=src.device)
                chosen = torch.tensor(follow, dtype=torch.int64, device=src.device).view(-1, num_beams)
                history = rows_of(candidates.index_select(0, places), chosen)
                total = score.index_select(0, places).gather(1, chosen)
                rows = origin.index_select(0, places).gather(1, chosen) + places.unsqueeze(1) * width
                past = [tensor.index_select(0, rows.flatten()) for tensor in past]
                if len(stay) < len(alive):
                    cross = [tensor.index_select(0, places) for tensor in cross]
                    padding = padding.index_select(0, places)
                    alive = [alive[place] for place in stay]
            return self._collect(kept, kept_scores, margins, num_hypotheses, memory)

    def _collect(
        self,
        kept: List[List[Tensor]],
        kept_scores: List[List[Tensor]],
        margins: List[float],
        num_hypotheses: int,
        memory: Tensor,
    ) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best ``num_hypotheses`` results of each sentence, as :meth:`search` returns them."""
        best: List[Tensor] = []
        best_scores: List[Tensor] = []
        for sentence, unsorted in enumerate(kept_scores):
            # Stacked, because TorchScript converts a list of numbers to a tensor through float32, whatever the dtype.
            scores, ranked = torch.sort(torch.stack(unsorted), stable=True, dim=0, descending=True)
            order: List[int] = ranked.tolist()
            best_scores.append(scores[:num_hypotheses])
            for rank in range(num_hypotheses):
                best.append(kept[sentence][order[rank]])
                if rank + 1 < len(order):
                    margins[sentence] = min(margins[sentence], float(scores[rank] - scores[rank + 1]))
        lengths = torch.tensor([ids.size(0) for ids in best], dtype=torch.int64, device=memory.device)
        longest = int(lengths.max())
        tokens = torch.full([len(best), longest], self.pad_id, dtype=torch.int64, device=memory.device)
        for row, ids in enumerate(best):
            tokens[row, : ids.size(0)] = ids
        return (
            tokens.view(len(kept), num_hypotheses, longest),
            lengths.view(-1, num_hypotheses),
            torch.stack(best_scores).to(memory.dtype),
            torch.tensor(margins, dtype=torch.float64),
        )

    def _check(
        self,
        src: Tensor,
        padding: Tensor,
        max_length: int,
        min_length: int,
        num_beams: int,
        length_penalty: float,
        num_hypotheses: int,
    ) -> None:
        """Raise ``ValueError`` if an argument does not fit, with both values and the next step."""
        if self.encoder.encoder.training:
            raise ValueError("the model is in training mode, where dropout makes results random: call eval() first")
        if src.dim() != 2 or src.dtype != torch.int64:
            raise ValueError(f"src must be int64 [N, S], got {src.dtype} with {src.dim()} dimensions")
        if src.size(0) == 0 or src.size(1) == 0:
            raise ValueError(f"src is [{src.size(0)}, {src.size(1)}], expected at least one sentence and one token")
        if padding.dtype != torch.bool or padding.size() != src.size():
            raise ValueError(f"src_key_padding_mask must be bool {src.size()}, got {padding.dtype} {padding.size()}")
        if src.size(1) > self.positions:
            raise ValueError(f"the source's length {src.size(1)} exceeds the {self.positions} positions: shorten it")
        low, high = int(src.min()), int(src.max())
        if low < 0 or high >= self.src_vocab_size:
            raise ValueError(f"src has ids {low} to {high}, the vocabulary only 0 to {self.src_vocab_size - 1}")
        if max_length < 1 or max_length > self.positions:
            raise ValueError(f"max_length is {max_length}, choose 1 to {self.positions}, the number of positions")
        if min_length < 0 or min_length > max_length:
            raise ValueError(f"min_length is {min_length}, choose 0 to {max_length}, which is max_length")
        if num_beams < 1 or 2 * num_beams > self.tgt_vocab_size:
            limit = self.tgt_vocab_size // 2
            raise ValueError(
                f"num_beams is {num_beams}, choose 1 to {limit}: half of the vocabulary of {self.tgt_vocab_size}"
            )
        if num_hypotheses < 1 or num_hypotheses > num_beams:
            raise ValueError(f"num_hypotheses is {num_hypotheses}, choose 1 to {num_beams}, which is num_beams")
        if not 0.0 <= length_penalty < math.inf:
            raise ValueError(f"length_penalty is {length_penalty}, choose a finite number that is not negative")
