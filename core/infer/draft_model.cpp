#include "infer/draft_model.h"

#include "base/error.h"
#include "ops/torch_threads.h"

#include <algorithm>

namespace fvlm::infer {
namespace {

// Rows of a part that a captured pass may have: the newest token, and the last draft where all of them were right.
constexpr int64_t most_new_rows = 2;

bool only_continues(const Scheduler::Pass& pass) {
  return std::ranges::all_of(
      pass.parts, [](const Scheduler::Part& part) { return part.is_continued && part.count <= most_new_rows; });
}

} // namespace

void require_models_for_drafts(const model::Model& model, const model::Model* draft) {
  const auto type = [](const model::Model& of) { return of.config().decoder.model_type; };
  if (model.decoder().carries_state())
    throw Error(
        ErrorKind::usage,
        "speculation does not go with a decoder '{}': its layers carry states from row to row, from which drafts "
        "that are wrong cannot be taken back",
        type(model))
        .advise("leave out --speculate and --draft");
  if (draft && draft->decoder().carries_state())
    throw Error(
        ErrorKind::usage,
        "a decoder '{}' cannot draft: its layers carry states from row to row, from which drafts that are wrong "
        "cannot be taken back",
        type(*draft))
        .advise("name another draft model, or leave out --draft and let --speculate N find drafts in the text");
}

DraftModel::DraftModel(const model::Model& model, model::Operations& ops, const SchedulerLimits& limits,
                       int64_t vocabulary)
    : model_(model), ops_(ops), page_rows_(limits.page_rows), vocabulary_(vocabulary),
      parameters_(model.parameters().element_count()), scheduler_(limits), graphs_(model, ops) {}

void DraftModel::resize(int64_t pages) {
  while (!texts_.empty()) remove(texts_.begin()->first);
  graphs_.clear();
  pages_ = {}; // first, so that its memory serves the new ones
  pages_ = model_.decoder().make_kv_pages(ops_, pages + 1, page_rows_, 0);
  scheduler_.resize(pages);
}

void DraftModel::remove(int64_t number) {
  texts_.erase(number);
  scheduler_.remove(number);
}

bool DraftModel::follow(const Request& request) {
  const auto [found, is_new] = texts_.try_emplace(request.number);
  Text& text = found->second;
  std::vector<int64_t> tokens;
  for (; text.known < request.rows.size(); ++text.known)
    if (const int64_t row = request.rows[text.known]; row != visual_placeholder) tokens.push_back(row);
  const int64_t readable = model_.config().decoder.vocab_size;
  const auto is_unknown = [&](int64_t token) { return token >= readable; };
  if (text.is_readable && std::ranges::any_of(tokens, is_unknown)) {
    text.is_readable = false;
    scheduler_.remove(request.number);
  }
  if (!text.is_readable) return false;
  if (!is_new) {
    scheduler_.settle(request.number, tokens);
    return true;
  }
  Scheduler::Prompt prompt;
  prompt.number = request.number;
  prompt.max_rows = std::ssize(tokens) + request.left;
  prompt.rows = std::move(tokens);
  scheduler_.add(std::move(prompt));
  return true;
}

DecodeGraphs::Output DraftModel::compute(const Scheduler::Pass& pass, bool wants_logits) {
  if (only_continues(pass)) return graphs_.run(pass.rows, pages_, wants_logits);
  const auto embed = [&](const model::StagedRows& rows) { return model_.decoder().embed(ops_, rows.tokens); };
  return graphs_.run_prompts(pass.rows, embed, pages_);
}

int64_t DraftModel::next_token(const Request& request, const std::vector<int64_t>& drafts,
                               const DecodeGraphs::Output& output, int64_t row) const {
  if (request.sampler.is_argmax()) return output.likeliest.const_data_ptr<int64_t>()[row];
  std::vector<int64_t> context(request.rows.begin(), request.rows.end());
  context.insert(context.end(), drafts.begin(), drafts.end());
  return request.sampler.pick(output.logits[row], context, request.drawn + std::ssize(drafts));
}

std::map<int64_t, std::vector<int64_t>> DraftModel::propose(const std::vector<Request>& requests) {
  const ops::ModelThreads threads(parameters_);
  std::map<int64_t, Open> open;
  for (const Request& request : requests)
    if (request.most > 0 && follow(request)) open.emplace(request.number, Open{&request, 0});
  std::map<int64_t, std::vector<int64_t>> drafts;
  while (!open.empty()) {
    const Scheduler::Pass pass = scheduler_.next([&](int64_t number) { return open.contains(number); });
    if (pass.parts.empty()) break;
    const bool wants_logits =
        std::ranges::any_of(open, [](const auto& one) { return !one.second.request->sampler.is_argmax(); });
    const bool has_all_rows = only_continues(pass);
    DecodeGraphs::Output output = compute(pass, wants_logits);
    if (output.likeliest.defined()) output.likeliest = output.likeliest.cpu();
    std::map<int64_t, Open> next;
    int64_t row = -1; // of the output
    for (const Scheduler::Part& part : pass.parts) {
      row += has_all_rows ? part.count : part.is_continued ? 1 : 0;
      Open one = open.at(part.number);
      std::vector<int64_t>& found = drafts[part.number];
      if (found.empty()) one.rows = std::ssize(scheduler_.rows(part.number));
      // A text that has lost its pages meanwhile, and its drafts with them, goes on in the next call.
      if (!part.is_continued || std::ssize(scheduler_.rows(part.number)) != one.rows + std::ssize(found)) continue;
      const int64_t token = next_token(*one.request, found, output, row);
      if (token >= vocabulary_) continue;
      found.push_back(token);
      scheduler_.append_tentative(part.number, token);
      if (std::ssize(found) < one.request->most) next.emplace(part.number, one);
    }
    open = std::move(next);
  }
  return drafts;
}

} // namespace fvlm::infer
