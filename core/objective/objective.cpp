#include "objective/objective.h"

#include "model/attention_entropy.h"
#include "model/objectives.h"
#include "ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>

namespace fvlm::objective {

using ops::Tape, ops::Value;

std::vector<std::string> term_names(std::span<const plan::Term> terms, size_t decoders) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const plan::Term& term : terms) {
    const std::string name = term->metric();
    const int number = ++seen[name];
    names.push_back(number == 1 ? name : fmt::format("{}_{}", name, number));
  }
  for (size_t decoder = 1; decoder < decoders; ++decoder)
    for (size_t term = 0; term < terms.size(); ++term) names.push_back(names[term] + "." + plan::decoder_name(decoder));
  return names;
}

Objective::Objective(std::span<const plan::Term> terms, const std::string& mode) : terms_(terms), mode_(mode) {
  for (size_t index = 0; index < terms.size(); ++index) {
    const plan::ObjectiveTerm& term = *terms[index];
    losses_.push_back(make_loss(term));
    columns_ = std::max(columns_, 2 + std::ssize(term.figures()));
    const auto same = [&](const View& view) { return view.name == term.view(); };
    auto view = std::ranges::find_if(views_, same);
    if (view == views_.end())
      view = views_.insert(term.view().empty() ? views_.begin() : views_.end(), {term.view(), {}});
    view->terms.push_back(index);
  }
}

// What one decoder's part of forward_backward hands on.
struct Objective::Pass {
  Tape& tape;
  ops::Operations& ops;
  const model::Model& policy;
  const FrozenModels& frozen;
  const PassInputs& in;
  const at::Tensor& sums; // [terms, columns]
  PartTimes& times;

  // From here to the end of the forward pass's part, which the backward pass leaves in reverse.
  void begin(const char* part) const {
    if (times.has_callback())
      tape.push([&times = times, name = std::string(part) + " backward"] { times.report_part(name); });
  }
};

void Objective::forward_backward(ops::Operations& ops, const model::Model& policy, const FrozenModels& frozen,
                                 const DecoderPasses& passes, const PassSums& sums, PartTimes& times,
                                 ops::GradientMarks* marks) const {
  Tape tape;
  tape.set_marks(marks);
  const PassInputs& in = *passes.front();
  const Pass pass{tape, ops, policy, frozen, in, sums.terms, times};
  pass.begin("vision");
  const auto on_phase = [&](const char* ended, const char* next) {
    times.add_elapsed(ended);
    if (next) pass.begin(next);
  };
  if (passes.size() > 1) {
    const auto latents = policy.encode_for_all(tape, ops, in.pack, mode_, on_phase);
    const int64_t terms = std::ssize(terms_);
    // Each decoder leaves its gradient in the latents, and its activations are gone before the next one's come.
    for (size_t decoder = 0; decoder < passes.size(); ++decoder) {
      Tape own;
      const model::Model& model = policy.with_decoder(decoder);
      const PassInputs& read = *passes[decoder];
      const at::Tensor into = sums.terms.narrow(0, static_cast<int64_t>(decoder) * terms, terms);
      const Pass of_decoder{own, ops, model, frozen, read, into, times};
      of_decoder.begin("connector");
      model::VisualTokens seen;
      seen.tokens = model.adapt(own, ops, latents[decoder], read.pack);
      times.add_elapsed("connector");
      add_views(of_decoder, seen);
      own.backward();
      times.add_elapsed("backward");
    }
    tape.backward();
    times.add_elapsed("backward");
    return;
  }
  auto seen = policy.encode(tape, ops, in.pack, mode_,
                            sums.attention_entropy.defined() ? model::EncodeOutputs::tokens_and_attention
                                                             : model::EncodeOutputs::tokens,
                            on_phase);
  if (seen.attention.defined()) {
    const at::Tensor of_frames = model::attention_entropies(seen.attention) * in.frame_shares;
    at::Tensor entropy = sums.attention_entropy;
    entropy.copy_(at::where(in.frame_shares > 0, of_frames, 0.0).sum());
    seen.attention.reset();
    times.add_elapsed("metrics");
  }
  add_views(pass, seen);
  tape.backward();
  times.add_elapsed("backward");
}

void Objective::add_views(const Pass& pass, const model::VisualTokens& seen) const {
  for (const View& view : views_) {
    pass.begin("decoder");
    const Value& visual = seen.view(view.name);
    const Value hidden = view.name.empty() ? pass.policy.decode(pass.tape, pass.ops, visual, pass.in.pack, seen.next)
                                           : pass.policy.decode(pass.tape, pass.ops, visual, pass.in.pack);
    pass.times.add_elapsed("decoder");
    add_view(pass, view, visual, hidden);
  }
}

void Objective::add_view(const Pass& pass, const View& view, const Value& visual, const Value& hidden) const {
  const PassInputs& in = pass.in;
  std::vector<LossInputs> inputs;
  for (const size_t term : view.terms) {
    LossInputs& one = inputs.emplace_back(LossInputs{pass.tape,
                                                     pass.ops,
                                                     pass.policy,
                                                     in.pack,
                                                     visual,
                                                     hidden,
                                                     in.masks[term],
                                                     in.weights[static_cast<int64_t>(term)],
                                                     in.used_pairs,
                                                     in.judgements,
                                                     in.retrieval,
                                                     {},
                                                     {},
                                                     in.outcomes,
                                                     nullptr,
                                                     nullptr,
                                                     {}});
    one.reference_log_probs = [this, &pass, term] {
      const at::Tensor& cached = pass.in.reference_log_probs;
      return cached.defined() ? cached : log_probs(pass.ops, *pass.frozen.reference, pass.in, term);
    };
    one.reference_losses = [this, &pass] {
      const model::Model& reference = *pass.frozen.reference;
      Tape none(Tape::Mode::forward_only);
      return model::label_losses(none, pass.ops, reference, hidden_of(reference, pass.ops, pass.in.pack), pass.in.pack)
          .data;
    };
    const auto compared = in.compared.find(term);
    if (compared == in.compared.end()) continue;
    one.teacher = &pass.frozen.teacher(term, pass.policy);
    one.compared = &compared->second;
    one.teacher_hidden = [this, &pass, term] {
      const at::Tensor& cached = pass.in.compared.at(term).cached;
      return cached.defined() ? cached : teacher_hidden(pass.ops, pass.policy, pass.frozen, pass.in, term);
    };
  }
  pass.begin("head");
  // Where every gradient of the labels' losses is known beforehand, the head computes losses and gradients at once.
  at::Tensor gradient;
  bool reads = false, known = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Loss& loss = *losses_[view.terms[i]];
    if (!loss.reads_label_losses()) continue;
    reads = true;
    const at::Tensor own = loss.known_gradient(inputs[i]);
    known = known && own.defined();
    if (own.defined()) gradient = gradient.defined() ? gradient + own : own;
  }
  Value label_losses;
  if (reads && known) {
    label_losses = Value(model::next_token_loss(pass.tape, pass.ops, pass.policy, hidden, in.pack, gradient));
  } else if (reads) {
    label_losses = model::label_losses(pass.tape, pass.ops, pass.policy, hidden, in.pack);
    if (label_losses.requires_grad() && gradient.defined()) label_losses.gradient->add(gradient);
  }
  pass.times.add_elapsed("head");
  bool reads_others = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t term = view.terms[i];
    const auto sums = losses_[term]->compute(inputs[i], label_losses);
    for (size_t column = 0; column < sums.size(); ++column)
      pass.sums[static_cast<int64_t>(term)][static_cast<int64_t>(column)].add_(sums[column]);
    reads_others =
        reads_others || inputs[i].teacher || terms_[term]->reference() != plan::ObjectiveTerm::Reference::none;
  }
  if (reads_others) pass.times.add_elapsed("reference");
}

Value Objective::hidden_of(const model::Model& frozen, ops::Operations& ops, const model::Pack& pack) const {
  Tape none(Tape::Mode::forward_only);
  const auto seen = frozen.encode(none, ops, pack, mode_);
  return frozen.decode(none, ops, seen.tokens, pack);
}

at::Tensor Objective::teacher_hidden(ops::Operations& ops, const model::Model& policy, const FrozenModels& frozen,
                                     const PassInputs& in, size_t term) const {
  const model::Pack& read = terms_[term]->reads_teacher_prompt() ? *in.teacher_pack : in.pack;
  Tape none(Tape::Mode::forward_only);
  return ops::gather_rows(none, hidden_of(frozen.teacher(term, policy), ops, read), in.compared.at(term).teacher_rows)
      .data;
}

at::Tensor Objective::log_probs(ops::Operations& ops, const model::Model& reference, const PassInputs& in,
                                size_t term) const {
  Tape none(Tape::Mode::forward_only);
  const Value hidden = hidden_of(reference, ops, in.pack);
  return model::log_probabilities(none, ops, reference, hidden, in.pack, in.masks[term])
      .sum.narrow(0, 0, 2 * in.used_pairs.size(0));
}

at::Tensor Objective::reference_log_probs(ops::Operations& ops, const model::Model& reference,
                                          const PassInputs& in) const {
  const auto paired = std::ranges::find_if(
      terms_, [](const plan::Term& term) { return term->reference() != plan::ObjectiveTerm::Reference::none; });
  return log_probs(ops, reference, in, static_cast<size_t>(paired - terms_.begin()));
}

} // namespace fvlm::objective
