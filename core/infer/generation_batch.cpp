#include "infer/generation_batch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "infer/captured.h"
#include "infer/ngram.h"
#include "ops/pinned_memory.h"
#include "ops/rows.h"
#include "ops/torch_threads.h"
#include "recipe/placeholders.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/concat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace fvlm::infer {
namespace {

// Passes of a small model over so many rows, or a multiple, have as much work for threads as those of a model so many
// times as large over a few.
constexpr int64_t rows_of_threads = 32;

// Whether they are 0, 1, 2, ...
bool is_range(const std::vector<int64_t>& numbers) {
  return numbers.empty() || (numbers.front() == 0 && numbers.back() + 1 == std::ssize(numbers));
}

// Puts the visual rows of numbered placeholders into the order of the text, where each then has its row and its key.
void order_visual_rows(Prompt& prompt) {
  if (Placeholders::in(prompt.tokens).numbered == 0 || !prompt.visual.defined()) return;
  const std::vector<std::string> of_frames = std::exchange(prompt.visual_keys, {});
  const int64_t rows = prompt.visual.size(0);
  const auto add_key = [&](int64_t token, std::span<const int64_t> of_rows) {
    if (of_frames.empty()) return;
    const int64_t each = rows / std::ssize(of_frames);
    std::string key = fmt::format("{}", token);
    for (const int64_t row : of_rows) key += "/" + of_frames.at(static_cast<size_t>(row / each));
    prompt.visual_keys.push_back(std::move(key));
  };
  std::vector<int64_t> order, mean_rows;
  std::vector<float> shares;
  for (int64_t& token : prompt.tokens) {
    if (!is_placeholder(token)) continue;
    if (is_shrunk_placeholder(token)) {
      const ShrunkPatch patch = ShrunkPatch::of(token);
      const ShrunkPatch::Mean mean = patch.mean(rows / patch.picture.frames());
      order.push_back(rows + std::ssize(mean_rows) / std::ssize(mean.rows));
      mean_rows.insert(mean_rows.end(), mean.rows.begin(), mean.rows.end());
      shares.insert(shares.end(), mean.shares.begin(), mean.shares.end());
      add_key(token, mean.rows);
    } else {
      order.push_back(visual_row_of(token));
      add_key(token, std::span(order).last(1));
    }
    token = visual_placeholder;
  }
  const at::Device device = prompt.visual.device();
  if (!mean_rows.empty()) {
    ops::Tape none(ops::Tape::Mode::forward_only);
    prompt.visual = ops::append_means(none, ops::Value(prompt.visual), upload(mean_rows, device).view({-1, 4}),
                                      at::tensor(shares, at::kFloat).to(device).view({-1, 4}))
                        .data;
  }
  prompt.visual = prompt.visual.index_select(0, upload(order, device));
}

// A row of an image depends on all of its cells and on how they lie: keys of frames become keys of such rows.
void key_cells_by_image(Prompt& prompt) {
  if (prompt.grids.empty() || prompt.visual_keys.empty()) return;
  std::vector<std::string> keys;
  auto cell = prompt.visual_keys.begin();
  for (const ImageGrid& grid : prompt.grids) {
    std::string content =
        fmt::format("{}x{}x{}x{} {}", grid.rows, grid.columns, grid.steps, grid.step_frames, grid.step_seconds);
    for (int64_t i = 0; i < grid.squares(); ++i) content += " " + *cell++;
    const std::string image = sha256_hex(content);
    for (int64_t i = 0; i < grid.cells(); ++i) keys.push_back(fmt::format("{}.{}", image, i));
  }
  prompt.visual_keys = std::move(keys);
}

// Of the logits [rows, vocabulary], each with the token that was chosen, on their device.
std::vector<TokenLogprobs> logprobs_of(const at::Tensor& logits, std::span<const int64_t> chosen, int64_t top) {
  const at::Tensor all = at::log_softmax(logits.to(at::kDouble), 1);
  const std::vector<int64_t> places(chosen.begin(), chosen.end());
  const at::Tensor own = all.gather(1, upload(places, all.device()).view({-1, 1})).cpu();
  const auto [values, ids] = all.topk(std::min(top, all.size(1)), 1);
  const at::Tensor likely = values.cpu().contiguous(), tokens = ids.cpu().contiguous();
  std::vector<TokenLogprobs> found;
  for (int64_t row = 0; row < all.size(0); ++row) {
    TokenLogprobs& one = found.emplace_back();
    one.chosen = own.const_data_ptr<double>()[row];
    for (int64_t i = row * tokens.size(1); i < (row + 1) * tokens.size(1); ++i)
      one.top.emplace_back(tokens.const_data_ptr<int64_t>()[i], likely.const_data_ptr<double>()[i]);
  }
  return found;
}

std::vector<float> floats_of(const at::Tensor& row) {
  const at::Tensor values = row.to(at::kCPU, at::kFloat).contiguous();
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

SchedulerLimits limits_of(const BatchOptions& options, at::Device device) {
  if (options.prefill_rows > 0) return {options.page_rows, options.prefill_rows};
  if (device.is_cuda()) return {options.page_rows, 2048, 8192};
  return {options.page_rows, 256};
}

} // namespace

GenerationBatch::GenerationBatch(const model::Model& model, model::Operations& ops, std::vector<int64_t> end_tokens,
                                 const BatchOptions& options)
    : model_(model), ops_(ops), end_tokens_(std::move(end_tokens)), options_(options),
      parameters_(model.parameters().element_count()), scheduler_(limits_of(options, ops.options().device)) {
  // Some configs have -1 for none. Such a token never comes, and has no logit.
  std::erase_if(end_tokens_, [&](int64_t token) { return token < 0 || token >= model.config().decoder.vocab_size; });
  for (size_t adapter = 0; adapter <= options.adapted.size(); ++adapter)
    graphs_.emplace_back(model_with(adapter), ops, options.captures);
  if (options.mixed) mixed_graphs_.emplace(*options.mixed, ops, options.captures);
  if (options.draft_tokens > 0) require_models_for_drafts(model, options.draft_model);
  if (options.draft_model && options.draft_tokens > 0)
    draft_model_ = std::make_unique<DraftModel>(*options.draft_model, ops, limits_of(options, ops.options().device),
                                                model.config().decoder.vocab_size);
}

int64_t GenerationBatch::add(Prompt prompt) {
  // Keys of cells become those of their images while there is one for each.
  key_cells_by_image(prompt);
  order_visual_rows(prompt);
  Sampler sampler(prompt.sampling);
  check(prompt.stop, prompt.sampling);
  Scheduler::Prompt scheduled;
  scheduled.number = prompts_;
  if (prompt.visual.defined() && model::placeholders_of(prompt.tokens) == 0)
    scheduled.rows.assign(static_cast<size_t>(prompt.visual.size(0)), visual_placeholder);
  scheduled.rows.insert(scheduled.rows.end(), prompt.tokens.begin(), prompt.tokens.end());
  scheduled.max_rows = std::ssize(scheduled.rows) + prompt.max_tokens;
  scheduled.adapter = static_cast<int64_t>(prompt.adapter);
  scheduled.group = group_of(prompt.adapter);
  scheduled.visual_keys = std::move(prompt.visual_keys);
  if (prompt.on_scores) {
    if (prompt.visual.defined() || !prompt.top_logprobs)
      throw Error(ErrorKind::internal, "a prompt that is scored has visual rows or no top_logprobs");
    scheduled.scored_rows = std::ssize(scheduled.rows) - 1;
  }
  if (const auto rules = model_.config().row_positions(); rules.axes != RowAxes::none && !prompt.grids.empty())
    scheduled.positions = {scheduled.rows, prompt.grids, rules};
  scheduled.bidirectional_rows = model_.connector().bidirectional_rows();
  scheduler_.add(std::move(scheduled));
  answers_.emplace(prompts_, Answer{std::move(prompt), sampler, {.number = prompts_}});
  return prompts_++;
}

std::vector<int64_t> GenerationBatch::ends_of(const StopRules& stop) const {
  std::vector<int64_t> ends = stop.stop_token_ids;
  if (!stop.ignore_eos) ends.insert(ends.end(), end_tokens_.begin(), end_tokens_.end());
  return ends;
}

void GenerationBatch::check(const StopRules& stop, const Sampling& sampling) const {
  const int64_t vocabulary = model_.config().decoder.vocab_size;
  const auto require = [&](int64_t token, const char* field) {
    if (token >= 0 && token < vocabulary) return;
    throw Error(ErrorKind::usage, "{}: expected tokens of the model's {}, got {}", field, vocabulary, token).at(field);
  };
  for (const int64_t token : stop.stop_token_ids) require(token, "stop_token_ids");
  for (const auto& [token, bias] : sampling.logit_bias) require(token, "logit_bias");
  const std::vector<int64_t> ends = ends_of(stop);
  if (std::ssize(std::set(ends.begin(), ends.end())) == vocabulary)
    throw Error(ErrorKind::usage, "stop_token_ids: every token of the model ends the answer").at("stop_token_ids");
}

bool GenerationBatch::cancel(int64_t number) {
  const bool is_open = answers_.contains(number);
  forget(number);
  return is_open;
}

void GenerationBatch::forget(int64_t number) {
  scheduler_.remove(number);
  if (draft_model_) draft_model_->remove(number);
  answers_.erase(number);
}

std::optional<SchedulerCounts> GenerationBatch::draft_model_counts() const {
  return draft_model_ ? std::optional(draft_model_->counts()) : std::nullopt;
}

int64_t GenerationBatch::group_of(size_t adapter) const {
  return adapter == 0 || options_.adapted[adapter - 1].is_mixed ? 0 : static_cast<int64_t>(adapter);
}

// A pass of one adapter is not that of the mixed ones, which computes columns of all.
const model::Model& GenerationBatch::model_of(const Scheduler::Pass& pass) const {
  return pass.rows.are_mixed() ? *options_.mixed : model_with(static_cast<size_t>(pass.rows.adapters.front()));
}

DecodeGraphs& GenerationBatch::graphs_of(const Scheduler::Pass& pass) {
  return pass.rows.are_mixed() ? *mixed_graphs_ : graphs_[static_cast<size_t>(pass.rows.adapters.front())];
}

at::Tensor GenerationBatch::embed(const Scheduler::Pass& pass, const model::StagedRows& rows) const {
  at::Tensor x = model_of(pass).decoder().embed(ops_, rows.tokens);
  std::vector<int64_t> places;
  std::vector<at::Tensor> visual;
  int64_t begin = 0; // of the part, in the pass
  for (const Scheduler::Part& part : pass.parts) {
    const at::Tensor& of_prompt = answers_.at(part.number).prompt.visual;
    if (of_prompt.defined()) {
      const auto first = scheduler_.rows(part.number).begin(), from = first + part.begin;
      int64_t count = 0;
      for (int64_t i = 0; i < part.count; ++i)
        if (from[i] == visual_placeholder) places.push_back(begin + i), ++count;
      if (count > 0) visual.push_back(of_prompt.narrow(0, std::count(first, from, visual_placeholder), count));
    }
    begin += part.count + std::ssize(part.drafts);
  }
  if (const int64_t layers = model_.connector().deepstack_layers(); layers > 0)
    x = at::concat({x, at::zeros({x.size(0), layers * x.size(1)}, x.options())}, 1);
  if (!places.empty()) x.index_copy_(0, upload(places, x.device()), at::concat(visual).to(x.scalar_type()));
  return x;
}

bool GenerationBatch::only_decodes(const Scheduler::Pass& pass) const {
  return std::all_of(pass.parts.begin(), pass.parts.end(), [&](const Scheduler::Part& part) {
    return part.count == 1 && part.is_continued && !answers_.at(part.number).prompt.on_embedding &&
           scheduler_.rows(part.number)[static_cast<size_t>(part.begin)] != visual_placeholder;
  });
}

bool GenerationBatch::wants_logits(const Scheduler::Pass& pass) const {
  return std::any_of(pass.parts.begin(), pass.parts.end(),
                     [&](const Scheduler::Part& part) { return answers_.at(part.number).reads_logits(); });
}

DecodeGraphs::Output GenerationBatch::compute(const Scheduler::Pass& pass, const DeviceTokens& tokens) {
  DecodeGraphs& graphs = graphs_of(pass);
  if (only_decodes(pass)) return graphs.run(pass.rows, pages_, wants_logits(pass), tokens);
  const auto embedded = [&](const model::StagedRows& rows) { return embed(pass, rows); };
  const bool scores = std::ranges::any_of(pass.parts, [](const Scheduler::Part& part) { return part.scored > 0; });
  return graphs.run_prompts(pass.rows, embedded, pages_, tokens, /*may_capture=*/!scores);
}

std::map<int64_t, int64_t> GenerationBatch::draw(const PassInFlight& last) {
  std::vector<Sampler::Draw> draws;
  std::vector<const Answer*> answers;
  std::vector<int64_t> rows;
  int64_t row = 0;
  for (const Scheduler::Part& part : last.pass.parts) {
    const auto found = answers_.find(part.number);
    if (part.is_continued && part.drafts.empty() && found != answers_.end() && !found->second.takes_likeliest()) {
      draws.push_back({&found->second.sampler, scheduler_.rows(part.number), std::ssize(found->second.answer.tokens)});
      answers.push_back(&found->second);
      rows.push_back(row + part.scored);
    }
    row += part.outputs();
  }
  std::map<int64_t, int64_t> tokens;
  if (draws.empty()) return tokens;
  const at::Tensor logits = last.output.logits.index_select(0, upload(rows, last.output.logits.device()));
  for (size_t i = 0; i < answers.size(); ++i) hide_tokens_of(*answers[i], logits[static_cast<int64_t>(i)]);
  const std::vector<int64_t> drawn = Sampler::pick_together(logits, draws);
  for (size_t i = 0; i < rows.size(); ++i) tokens[rows[i]] = drawn[i];
  return tokens;
}

void GenerationBatch::hide_tokens_of(const Answer& answer, const at::Tensor& logits) {
  if (answer.prompt.constraint) masks_.hide(*answer.prompt.constraint, end_tokens_, logits);
  if (!answer.may_end()) hide_tokens(ends_of(answer.prompt.stop), logits);
}

GeneratedToken GenerationBatch::pick(Answer& answer, const at::Tensor& logits, int64_t likeliest,
                                     std::optional<int64_t> drawn) const {
  GeneratedToken token;
  if (!answer.given.empty()) {
    token.id = answer.given.front();
    answer.given.pop_front();
  } else if (answer.takes_likeliest()) {
    token.id = likeliest;
  } else {
    token.id =
        drawn ? *drawn
              : answer.sampler.pick(logits, scheduler_.rows(answer.answer.number), std::ssize(answer.answer.tokens));
  }
  if (!answer.prompt.top_logprobs) return token;
  const std::array chosen{token.id};
  token.logprobs = logprobs_of(logits.cpu().unsqueeze(0), chosen, *answer.prompt.top_logprobs).front();
  return token;
}

// A pass that computes a prompt again, whose pages others needed, replaces what the one before found.
void GenerationBatch::score(Answer& answer, const Scheduler::Part& part, const at::Tensor& logits) const {
  constexpr int64_t at_once = 64; // rows, which take 8 bytes for each token of the vocabulary
  answer.scores.resize(static_cast<size_t>(part.begin));
  const std::span<const int64_t> rows(scheduler_.rows(part.number));
  for (int64_t first = 0; first < part.scored; first += at_once) {
    const int64_t count = std::min(at_once, part.scored - first);
    const auto chosen = rows.subspan(static_cast<size_t>(part.begin + first + 1), static_cast<size_t>(count));
    std::vector<TokenLogprobs> found = logprobs_of(logits.narrow(0, first, count), chosen, *answer.prompt.top_logprobs);
    for (size_t i = 0; i < found.size(); ++i) answer.scores.push_back({chosen[i], std::move(found[i])});
  }
}

bool GenerationBatch::append(Answer& answer, GeneratedToken token) {
  GeneratedAnswer& generated = answer.answer;
  scheduler_.append(generated.number, token.id);
  generated.tokens.push_back(token.id);
  if (token.logprobs) generated.logprobs.push_back(*token.logprobs);
  const StopRules& stop = answer.prompt.stop;
  generated.ended = (!stop.ignore_eos && std::ranges::find(end_tokens_, token.id) != end_tokens_.end()) ||
                    std::ranges::find(stop.stop_token_ids, token.id) != stop.stop_token_ids.end();
  if (answer.prompt.constraint)
    answer.prompt.constraint->advance(token.id);
  else if (answer.prompt.calculator)
    for (const int64_t next : answer.prompt.calculator->following(generated.tokens)) answer.given.push_back(next);
  generated.seconds = steady_seconds() - answer.begin;
  if (generated.ended || (answer.prompt.on_token && !answer.prompt.on_token(token))) return true;
  if (end_tokens_.empty() && answer.prompt.constraint && answer.prompt.constraint->is_over()) return true;
  return std::ssize(generated.tokens) == answer.prompt.max_tokens;
}

void GenerationBatch::propose_drafts() {
  if (options_.draft_tokens == 0) return;
  std::vector<DraftModel::Request> requests;
  for (const int64_t number : scheduler_.decoding()) {
    const Answer& answer = answers_.at(number);
    if (group_of(answer.prompt.adapter) != scheduler_.turn()) continue;
    if (!answer.may_continue_with_any()) continue; // a text that may hardly be anything else needs no guess
    const int64_t drawn = std::ssize(answer.answer.tokens), left = answer.prompt.max_tokens - drawn,
                  most = std::min(options_.draft_tokens, left - 1);
    if (draft_model_)
      requests.push_back({number, scheduler_.rows(number), left, most, answer.sampler, drawn});
    else
      scheduler_.draft(number, propose_by_ngram(scheduler_.rows(number), most));
  }
  if (draft_model_)
    for (auto& [number, tokens] : draft_model_->propose(requests)) scheduler_.draft(number, std::move(tokens));
}

bool GenerationBatch::ends_with_next_token(const Answer& answer) {
  return std::ssize(answer.answer.tokens) + 1 >= answer.prompt.max_tokens;
}

bool GenerationBatch::can_run_ahead(const Scheduler::Pass& pass) const {
  if (!device::runtime() || options_.draft_tokens > 0 || !scheduler_.can_run_ahead()) return false;
  bool goes_on = false;
  for (const Scheduler::Part& part : pass.parts) {
    const auto found = answers_.find(part.number);
    if (part.scored > 0) return false;
    if (found == answers_.end() || !part.is_continued) continue;
    const Answer& answer = found->second;
    if (answer.reads_logits() || !answer.given.empty() || answer.prompt.on_embedding) return false;
    goes_on = goes_on || !ends_with_next_token(answer);
  }
  return goes_on;
}

GenerationBatch::PassInFlight GenerationBatch::launch(Scheduler::Pass pass, const DeviceTokens& tokens) {
  const bool reads_prompts = !only_decodes(pass);
  step_reads_ |= reads_prompts;
  PassInFlight launched{std::move(pass), {}, {}, {}, steady_seconds(), reads_prompts};
  const ops::ModelThreads threads(parameters_ * std::max<int64_t>(1, launched.pass.rows.size() / rows_of_threads));
  launched.output = compute(launched.pass, tokens);
  const at::Tensor& likeliest = launched.output.likeliest;
  if (!likeliest.defined()) return launched;
  launched.likeliest = at::empty(likeliest.sizes(), at::TensorOptions(at::kLong).pinned_memory(likeliest.is_cuda()));
  ops::copy_by_kernel(launched.likeliest, likeliest);
  if (device::Runtime* gpu = device::runtime()) launched.ready = gpu->record_event();
  return launched;
}

// Prompts that wait join it, so that the device has no pause.
GenerationBatch::PassInFlight GenerationBatch::launch_behind(const PassInFlight& last) {
  std::map<int64_t, int64_t> outputs; // of the last pass: by number of the answers that go on, which one is theirs
  std::set<int64_t> ending;
  int64_t output = 0;
  for (const Scheduler::Part& part : last.pass.parts) {
    if (!part.is_continued) continue;
    const int64_t own = output++;
    const auto found = answers_.find(part.number);
    if (found == answers_.end()) continue;
    if (ends_with_next_token(found->second)) {
      ending.insert(part.number);
    } else {
      scheduler_.append(part.number, Scheduler::unknown_token);
      outputs.emplace(part.number, own);
    }
  }
  Scheduler::Pass pass = scheduler_.next([&](int64_t number) { return !ending.contains(number); });
  std::vector<int64_t> from, to; // outputs, and the rows that have their tokens
  int64_t row = 0;
  for (const Scheduler::Part& part : pass.parts) {
    if (const auto found = outputs.find(part.number); found != outputs.end())
      from.push_back(found->second), to.push_back(row);
    row += part.count;
  }
  const at::Tensor& tokens = last.output.likeliest;
  const auto selected = [&](const at::Tensor& all) {
    return is_range(from) ? all.narrow(0, 0, std::ssize(from)) : all.index_select(0, upload(from, all.device()));
  };
  return launch(std::move(pass), {selected(tokens), is_range(to) ? at::Tensor() : upload(to, tokens.device())});
}

void GenerationBatch::take(const PassInFlight& last) {
  step_reads_ |= last.reads_prompts;
  if (last.ready) {
    const double begin = steady_seconds();
    last.ready->wait();
    step_waits_ += steady_seconds() - begin;
  }
  const std::map<int64_t, int64_t> drawn = draw(last);
  int64_t row = 0;
  for (const Scheduler::Part& part : last.pass.parts) {
    const auto found = answers_.find(part.number);
    const int64_t first = row + part.scored;
    row += part.outputs();
    if (found == answers_.end()) continue;
    Answer& answer = found->second;
    if (answer.begin == 0) answer.begin = last.begin;
    const bool is_scored = static_cast<bool>(answer.prompt.on_scores);
    if (is_scored && part.scored > 0)
      score(answer, part, last.output.logits.narrow(0, first - part.scored, part.scored));
    if (!part.is_continued) continue;
    if (is_scored) std::exchange(answer.prompt.on_scores, {})(std::exchange(answer.scores, {}));
    bool is_over = static_cast<bool>(answer.prompt.on_embedding), is_right = true;
    if (is_over) answer.prompt.on_embedding(floats_of(last.output.hidden[first]));
    for (size_t i = 0; is_right && !is_over && i <= part.drafts.size(); ++i) {
      const int64_t at = first + static_cast<int64_t>(i);
      const at::Tensor logits = answer.reads_logits() ? last.output.logits[at] : at::Tensor();
      const auto own = drawn.find(at);
      const GeneratedToken token = pick(answer, logits, last.likeliest.const_data_ptr<int64_t>()[at],
                                        own == drawn.end() ? std::nullopt : std::optional(own->second));
      is_over = append(answer, token);
      is_right = i < part.drafts.size() && token.id == part.drafts[i];
      drafts_.accepted += is_right ? 1 : 0;
    }
    drafts_.proposed += std::ssize(part.drafts);
    if (!is_over) continue;
    answer.answer.shared_rows = scheduler_.shared_rows(part.number);
    finished_.push_back(std::move(answer.answer));
    forget(part.number);
  }
}

bool GenerationBatch::step() {
  const double begin = steady_seconds();
  step_reads_ = false, step_waits_ = 0;
  if (!run_step()) return false;
  StepTimes& times = step_reads_ ? reading_times_ : decoding_times_;
  ++times.steps, times.seconds += steady_seconds() - begin, times.device_seconds += step_waits_;
  return true;
}

bool GenerationBatch::run_step() {
  const auto last = std::exchange(in_flight_, std::nullopt);
  if (last && can_run_ahead(last->pass)) {
    in_flight_ = launch_behind(*last);
    take(*last);
    return true;
  }
  if (last) take(*last);
  bool dropped = reserve();
  propose_drafts();
  Scheduler::Pass pass = scheduler_.next();
  if (pass.parts.empty()) { // an answer that was alone has given all pages back, as it needs more
    dropped |= reserve();
    pass = scheduler_.next();
  }
  if (pass.parts.empty()) return last.has_value() || dropped;
  PassInFlight launched = launch(std::move(pass));
  if (can_run_ahead(launched.pass))
    in_flight_ = std::move(launched);
  else
    take(launched);
  return true;
}

std::vector<GeneratedAnswer> GenerationBatch::take_finished() {
  return std::exchange(finished_, {});
}

std::vector<GeneratedAnswer> GenerationBatch::finish() {
  while (step()) continue;
  std::sort(finished_.begin(), finished_.end(),
            [](const GeneratedAnswer& a, const GeneratedAnswer& b) { return a.number < b.number; });
  return take_finished();
}

} // namespace fvlm::infer
