#include "budget/shadow/step.h"

#include <algorithm>

namespace fvlm::budget::shadow {
namespace {

bool is_coarse(const plan::Term& term) {
  const auto* next = std::get_if<plan::NextToken>(&term);
  return next && next->pass == plan::Pass::coarse;
}

// The maps beside the frames: who is whose, and what is learnt.
int64_t maps_of(const Operations& ops, const PackShape& pack, size_t terms) {
  constexpr int64_t narrow = 4, wide = 8;
  const int64_t of_frames = pack.frames * (3 * narrow + wide), of_visual = pack.visual_rows * 2 * wide;
  const int64_t of_rows = pack.rows * (wide + narrow + ops.machine().element);
  const int64_t of_labels = pack.labels * (3 * wide + narrow + static_cast<int64_t>(terms) * narrow);
  return of_frames + of_visual + of_rows + of_labels + pack.sequences * narrow;
}

void prefer(const Operations& ops, const Model& reference, const PackShape& pack) {
  Tape none(Tape::Mode::forward_only);
  const auto seen = reference.see(none, pack);
  const Value hidden = reference.read(none, seen.tokens, pack);
  const Value rows = ops.take_rows(none, hidden, pack.labels);
  (void)ops.cross_entropy(none, rows, reference.head());
}

void follow(const Operations& ops, Tape& tape, const Model& policy, const Model& teacher, const Value& rows,
            const PackShape& pack) {
  Tape none(Tape::Mode::forward_only);
  const auto seen = teacher.see(none, pack);
  const Value hidden = teacher.read(none, seen.tokens, pack);
  const Value their_rows = ops.take_rows(none, hidden, pack.labels);
  const int64_t vocabulary = policy.head().rows;
  const auto all = [&] { return ops.wide(pack.labels, vocabulary); };
  const bool rounded = ops.machine().element != 4;
  const auto softened = [&](const Tensor& logits) {
    const Tensor divided = all();
    if (rounded) ops.ledger().touch(2 * logits.bytes); // as float32
    return all();
  };
  const Tensor theirs = softened(ops.linear(none, their_rows, teacher.head()).data);
  const Value logits = ops.linear(tape, rows, policy.head());
  const Tensor ours = softened(logits.data), target = all();
  { const Tensor difference = all(), weighted = all(); }
  if (!logits.wants_gradient()) return;
  const Tensor raised = all(), difference = all();
  Tensor gradient = all();
  if (rounded) gradient = ops.tensor(pack.labels, vocabulary);
  logits.gradient->add(std::move(gradient));
}

} // namespace

void learn(Operations& ops, const Models& models, const plan::Stage& stage, const PackShape& pack,
           int64_t frame_elements) {
  Ledger& ledger = ops.ledger();
  const auto& terms = stage.objective;
  const Ledger::Block held = [&] {
    const Ledger::For pack_item(ledger, Item::pack);
    return ledger.hold(4 * pack.frames * frame_elements + maps_of(ops, pack, terms.size()));
  }();
  Tape tape;
  const auto seen = models.policy.see(tape, pack);
  if (!std::all_of(terms.begin(), terms.end(), is_coarse)) {
    const Value hidden = models.policy.read(tape, seen.tokens, pack);
    const Ledger::For loss(ledger, Item::loss);
    const Value rows = ops.take_rows(tape, hidden, pack.labels);
    Value losses;
    if (stage.prefers())
      losses = ops.cross_entropy(tape, rows, models.policy.head());
    else
      losses = Value(ops.weighted_cross_entropy(tape, rows, models.policy.head()));
    if (losses.wants_gradient()) losses.gradient->add(ops.wide(pack.labels));
    for (size_t term = 0; term < terms.size(); ++term) {
      const Ledger::For passing(ledger, Item::passing, true);
      if (std::holds_alternative<plan::Dpo>(terms[term]))
        prefer(ops, *models.reference, pack);
      else if (std::holds_alternative<plan::Kl>(terms[term]))
        follow(ops, tape, models.policy, *models.teachers.at(term), rows, pack);
    }
  }
  if (std::any_of(terms.begin(), terms.end(), is_coarse)) {
    const Value hidden = models.policy.read(tape, seen.coarse, pack);
    const Ledger::For loss(ledger, Item::loss);
    const Value rows = ops.take_rows(tape, hidden, pack.labels);
    (void)ops.weighted_cross_entropy(tape, rows, models.policy.head());
  }
  const Ledger::For passing(ledger, Item::passing);
  tape.backward();
}

} // namespace fvlm::budget::shadow
