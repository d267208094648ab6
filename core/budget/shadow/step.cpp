#include "budget/shadow/step.h"

#include <algorithm>

namespace fvlm::budget::shadow {
namespace {

// The maps beside the frames: who is whose, and what is learnt.
int64_t maps_of(const PackShape& pack, size_t terms) {
  constexpr int64_t narrow = 4, wide = 8;
  const int64_t of_frames = pack.frames * (3 * narrow + wide), of_visual = pack.visual_rows * 2 * wide;
  const int64_t of_rows = pack.rows * (wide + 2 * narrow);
  const int64_t of_labels = pack.labels * (3 * wide + narrow + static_cast<int64_t>(terms) * narrow);
  return of_frames + of_visual + of_rows + of_labels + pack.sequences * narrow;
}

// What a model that does not learn makes of the pack.
Value hidden_of(const Model& frozen, const PackShape& pack) {
  Tape none(Tape::Mode::forward_only);
  const auto seen = frozen.see(none, pack);
  return frozen.read(none, seen.tokens, pack);
}

Value label_losses(const Operations& ops, Tape& tape, const Model& model, const Value& hidden, const PackShape& pack) {
  const Value rows = ops.gather_rows(tape, hidden, pack.labels);
  return ops.cross_entropy(tape, rows, model.head());
}

Tensor next_token(const Operations& ops, Tape& tape, const Model& model, const Value& hidden, const PackShape& pack) {
  const Value rows = ops.gather_rows(tape, hidden, pack.labels);
  return ops.weighted_cross_entropy(tape, rows, model.head());
}

void judge(const Operations& ops, const Model& reference, const PackShape& pack) {
  Tape none(Tape::Mode::forward_only);
  (void)label_losses(ops, none, reference, hidden_of(reference, pack), pack);
}

// log_softmax of the logits over the temperature, in float32.
Tensor softened(const Operations& ops, const Tensor& logits) {
  const auto all = [&] { return ops.wide(logits.rows, logits.columns); };
  Tensor typed;
  if (ops.machine().element != 4) typed = all();
  const Tensor divided = all();
  return all();
}

void follow(const Operations& ops, Tape& tape, const Model& policy, const Model& teacher, const Value& hidden,
            const PackShape& pack) {
  const Tensor theirs = [&] {
    const Value seen = hidden_of(teacher, pack);
    Tape none(Tape::Mode::forward_only);
    const Value rows = ops.gather_rows(none, seen, pack.labels);
    return softened(ops, ops.linear(none, rows, teacher.head()).data);
  }();
  const Value rows = ops.gather_rows(tape, hidden, pack.labels);
  const Value logits = ops.linear(tape, rows, policy.head());
  const Tensor ours = softened(ops, logits.data), target = another(ours);
  { const Tensor difference = another(ours), weighted = another(ours); }
  if (!logits.requires_grad()) return;
  const Tensor raised = another(ours), difference = another(ours);
  Tensor gradient = another(ours);
  if (ops.machine().element != 4) gradient = another(logits.data);
  logits.gradient->add(std::move(gradient));
}

} // namespace

Amounts learn(Operations& ops, const Models& models, const plan::Stage& stage, const PackShape& pack,
              int64_t frame_elements) {
  Ledger& ledger = ops.ledger();
  const auto& terms = stage.objective;
  const Ledger::Block held = [&] {
    const Ledger::For pack_item(ledger, Item::pack);
    return ledger.hold(4 * pack.frames * frame_elements * ops.machine().packs_of_frames + maps_of(pack, terms.size()));
  }();
  Tape tape;
  const auto seen = models.policy.see(tape, pack);
  const auto other_view = [](const plan::Term& term) { return !term->view().empty(); };
  if (!std::all_of(terms.begin(), terms.end(), other_view)) {
    const Value hidden = models.policy.read(tape, seen.tokens, pack, seen.next);
    const Ledger::For loss(ledger, Item::loss);
    Value losses;
    if (stage.needs_pairs())
      losses = label_losses(ops, tape, models.policy, hidden, pack);
    else
      losses = Value(next_token(ops, tape, models.policy, hidden, pack));
    if (losses.requires_grad()) losses.gradient->add(ops.wide(pack.labels));
    for (size_t term = 0; term < terms.size(); ++term) {
      const Ledger::For passing(ledger, Item::passing, true);
      if (terms[term]->teacher())
        follow(ops, tape, models.policy, *models.teachers.at(term), hidden, pack);
      else if (terms[term]->reference() == plan::ObjectiveTerm::Reference::live)
        judge(ops, *models.reference, pack);
    }
  }
  if (std::any_of(terms.begin(), terms.end(), other_view)) {
    const Value hidden = models.policy.read(tape, seen.coarse, pack);
    const Ledger::For loss(ledger, Item::loss);
    (void)next_token(ops, tape, models.policy, hidden, pack);
  }
  const Amounts kept = ledger.amounts();
  const Ledger::For passing(ledger, Item::passing);
  tape.backward();
  return kept;
}

} // namespace fvlm::budget::shadow
