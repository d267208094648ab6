#include "infer/generator.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "model/batch_file.h"
#include "model/loading.h"
#include "model/size_class.h"
#include "model/weights/generation_config.h"
#include "ops/torch_threads.h"
#include "recipe/placeholders.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace fvlm::infer {

using namespace model;

namespace {

// Refused before any work is done.
void check(const Generator& generator, const std::vector<Sample>& samples, const std::filesystem::path& file) {
  for (size_t i = 0; i < samples.size(); ++i) try {
      (void)generator.require_room(samples[i]);
    } catch (const Error& error) {
      throw Error(ErrorKind::data, "sample {}: {}", i, error.what()).at(file.string()).advise(error.advice());
    }
}

bool has_frames(const Sample& sample) {
  return frames_of(sample.frames) > 0;
}

// Whether those that have frames have one each, of one size.
bool have_single_frames(std::span<const Sample> samples) {
  const Sample& shown = *std::ranges::find_if(samples, has_frames);
  return std::ranges::all_of(samples, [&](const Sample& sample) {
    return !has_frames(sample) ||
           (frames_of(sample) == 1 && sample.grids.empty() && sample.frames.sizes() == shown.frames.sizes());
  });
}

int64_t tokens_of_prompt(const Sample& sample) {
  const auto& prompt = sample.texts[0].tokens;
  return std::ssize(prompt) - placeholders_of(prompt);
}

// For what an encoder keeps of the frames that are encoded together.
constexpr int64_t encoder_bytes_on_cpu = int64_t{2} << 30, encoder_bytes_on_gpu = int64_t{16} << 30;

// How many samples from this one on have no more frames together than these; at least one.
size_t encoded_together(std::span<const Sample> samples, int64_t max_frames) {
  int64_t frames = 0;
  size_t count = 0;
  for (; count < samples.size(); ++count) {
    frames += frames_of(samples[count]) / samples[count].copies;
    if (count > 0 && frames > max_frames) break;
  }
  return count;
}

// Operations are prepared anew for each number of frames, which takes a GPU far longer than a few frames more.
int64_t padded_frames(int64_t frames) {
  for (const int64_t size : {1, 4, 16, 64})
    if (frames <= size) return size;
  return (frames + 63) / 64 * 64;
}

} // namespace

Generator::Generator(const std::filesystem::path& model, const Execution& execution, Registry& registry)
    : folder_(model), arena_(execution.answering_arena()), ops_(registry, execution.operations()) {
  const ModelDirectory directory = ModelDirectory::open(model);
  const auto& folder = directory.description().sole_part(Role::decoder).folder.path;
  ends_ = end_tokens(folder, directory.description().decoder().eos_token_id);
  calculator_ = Calculator::of_file(folder / "tokenizer.json");
  model_ = load_model(directory, arena_);
  if (is_on_gpu()) frame_graphs_ = std::make_unique<FrameGraphs>(*model_, ops_);
}

Generator::Adapted Generator::load_adapter(const std::filesystem::path& folder) {
  if (!reader_) reader_.emplace(ModelDirectory::open(folder_));
  auto read = std::make_unique<AttachedAdapter>(reader_->read(folder));
  const AttachedAdapter& adapter = *read;
  for (const std::string& module : adapter.idle)
    log_warning("{}: the adapter of {} adds nothing, and is left out", folder.string(), module);
  Adapted made;
  made.model = load_attached(adapter, reader_->base(), *model_, arena_);
  const auto size = static_cast<uint64_t>(c10::elementSize(arena_.dtype));
  const bool can_be_mixed = may_mix(adapter), reads_decoder = made.model->connector().reads_decoder();
  const std::string decoder = adapter.description.sole_part(Role::decoder).name + ".";
  for (const auto& [name, view] : adapter.tensors) {
    const bool is_of_decoder = name.starts_with(decoder);
    made.bytes += view.elements() * size * (can_be_mixed && is_of_decoder ? 2 : 1); // in `model`, and among those mixed
    made.changes_frames = made.changes_frames || reads_decoder || !is_of_decoder;
  }
  if (is_on_gpu() && made.changes_frames) made.frame_graphs = std::make_unique<FrameGraphs>(*made.model, ops_);
  if (can_be_mixed) made.can_be_mixed = std::move(read);
  return made;
}

void Generator::use_adapter(const std::filesystem::path& folder) {
  model_ = load_adapter(folder).model; // which keeps the memory of the weights that it has in common with the other one
  if (is_on_gpu()) frame_graphs_ = std::make_unique<FrameGraphs>(*model_, ops_);
}

std::unique_ptr<Model> Generator::load_mixed() const {
  std::map<int32_t, const AttachedAdapter*> adapters;
  for (size_t i = 0; i < adapted_.size(); ++i)
    if (adapted_[i].can_be_mixed) adapters.emplace(static_cast<int32_t>(i) + 1, adapted_[i].can_be_mixed.get());
  if (adapters.empty()) return nullptr;
  const MixedAdapter mix = mixed(reader_->base().description(), adapters);
  auto made = load_attached(mix.adapter, reader_->base(), *model_, arena_);
  made->mix_adapters(mix.owners);
  return made;
}

size_t Generator::add_adapter(const std::filesystem::path& folder) {
  adapted_.push_back(load_adapter(folder));
  return adapted_.size();
}

void Generator::use_draft_model(const std::filesystem::path& model, const Execution& execution) {
  draft_model_ = load_model(model, execution.answering_arena());
}

void Generator::check_drafts(int64_t draft_tokens) const {
  if (draft_tokens > 0) require_models_for_drafts(*model_, draft_model_.get());
}

int64_t Generator::require_room(const Sample& sample) const {
  if (has_frames(sample)) require_readable(sample.frames, model_->frame_reader(sample.frames));
  const int64_t rows = model_->prompt_rows(sample), frames = frames_of(sample), tokens = tokens_of_prompt(sample),
                positions = config().decoder.max_position_embeddings;
  // Behind latents an answer may begin at once: an anchor of spaces has no tokens.
  if (tokens == 0 && !(has_frames(sample) && config().connector->reads_bytes()))
    throw Error(ErrorKind::data, "its prompt is empty").advise("a prompt of one token is enough");
  if (rows >= positions)
    throw PromptTooLong(ErrorKind::data,
                        "the model's maximum context length is {} tokens, of which the prompt's {} tokens{} leave "
                        "nothing for an answer",
                        positions, tokens,
                        frames == 0 ? "" : fmt::format(" and {} in {} rows", counted(frames, "frame"), rows - tokens));
  return rows;
}

int64_t Generator::frames_at_once(std::span<const Sample> samples) const {
  const auto shown = std::ranges::find_if(samples, has_frames);
  if (shown == samples.end()) return std::numeric_limits<int64_t>::max();
  const VisionConfig& vision = config().vision;
  const auto element = static_cast<int64_t>(c10::elementSize(ops_.options().dtype));
  // Keys and values of all layers, which frames are looked at through later.
  const int64_t of_frame = model_->frame_reader(shown->frames).tokens_per_frame * vision.hidden_size *
                           vision.num_hidden_layers * 2 * element;
  return (ops_.options().device.is_cuda() ? encoder_bytes_on_gpu : encoder_bytes_on_cpu) / of_frame;
}

std::vector<at::Tensor> Generator::encode(std::span<const Sample> samples, at::Tensor* attention, size_t encoder) {
  const Model& model = encoder > 0 ? *adapted_[encoder - 1].model : *model_;
  FrameGraphs* const graphs = (encoder > 0 ? adapted_[encoder - 1].frame_graphs : frame_graphs_).get();
  const auto shown = std::ranges::find_if(samples, has_frames);
  if (shown == samples.end()) return std::vector<at::Tensor>(samples.size());
  const ops::ModelThreads threads(model.parameters().element_count());
  const FrameReader reader = model.frame_reader(shown->frames);
  if (graphs && !attention && !reader.reads_bytes && have_single_frames(samples)) {
    std::vector<at::Tensor> frames;
    for (const Sample& sample : samples)
      if (has_frames(sample)) frames.push_back(sample.frames[0]);
    return visual_by_sample(graphs->encode(frames), {samples.begin(), samples.end()}, reader.rows_per_frame);
  }
  std::vector<Sample> packed(samples.begin(), samples.end());
  for (Sample& sample : packed)
    for (Text& text : sample.texts) text.is_label.assign(text.tokens.size(), false);
  if (is_on_gpu() && !reader.reads_bytes) {
    int64_t frames = 0;
    for (const Sample& sample : packed) frames += frames_of(sample) / sample.copies;
    Sample padding{at::zeros_like(shown->frames.narrow(0, 0, 1)), {{{0}, {false}}}};
    if (!shown->grids.empty()) padding.grids = {{1, 1}};
    if (reader.positions.axes == RowAxes::canvas) // an image has a token before it
      padding.texts = {{{0, visual_placeholder}, {false, false}}};
    packed.resize(packed.size() + static_cast<size_t>(padded_frames(frames) - frames), padding);
  }
  Tape no_grad(Tape::Mode::forward_only);
  Capacity capacity = Capacity::of(packed, reader.rows_per_frame);
  capacity.longest_video = row_class(capacity.longest_video); // attention is prepared anew for each
  const Pack pack = make_pack(packed, capacity, reader, ops_.tensor_options());
  const VisualTokens visual = model.encode(no_grad, ops_, pack, config().connector->inference_mode(),
                                           attention ? EncodeOutputs::tokens_and_attention : EncodeOutputs::tokens);
  if (attention) *attention = visual.attention;
  std::vector<at::Tensor> tokens = visual_by_sample(visual.tokens.data, packed, reader.rows_per_frame);
  tokens.resize(samples.size());
  return tokens;
}

void Generator::prepare_frames(int64_t image_size) {
  if (!frame_graphs_ || config().connector->reads_bytes() || model_->encoder().reads_cells()) return;
  const c10::InferenceMode without_autograd;
  frame_graphs_->prepare(image_size, image_size);
  for (const Adapted& adapted : adapted_)
    if (adapted.frame_graphs) adapted.frame_graphs->prepare(image_size, image_size);
}

void Generator::answers(const std::vector<Sample>& samples, const GenerateOptions& options, const TakeAnswer& take,
                        const TokenCallback& on_token) {
  if (options.limit < 1) throw Error(ErrorKind::usage, "an answer has 1 token or more, not {}", options.limit);
  std::vector<Answer> answers;
  std::vector<int64_t> limits;
  for (const Sample& sample : samples) {
    const int64_t room = config().decoder.max_position_embeddings - require_room(sample);
    answers.push_back({frames_of(sample), tokens_of_prompt(sample), {}, false, 0});
    limits.push_back(std::min(options.limit, room));
  }
  std::vector<int64_t> ends;
  if (!options.ignore_eos) ends = ends_, ends.insert(ends.end(), options.end_tokens.begin(), options.end_tokens.end());
  const auto texts = options.form ? std::make_shared<grammar::ConstrainedTexts>(options.tokens, options.form) : nullptr;
  GenerationBatch batch(*model_, ops_, ends, {.draft_tokens = options.draft_tokens, .draft_model = draft_model_.get()});
  const int64_t max_frames = frames_at_once(samples);
  for (size_t begin = 0; begin < samples.size();) {
    const double start = steady_seconds();
    const auto rest = std::span(samples).subspan(begin);
    const auto visual = encode(rest.first(encoded_together(rest, max_frames)));
    const double seconds = steady_seconds() - start;
    for (size_t i = 0; i < visual.size(); ++i, ++begin) {
      answers[begin].seconds = seconds;
      Sampling sampling = options.sampling;
      sampling.answer += begin;
      Prompt prompt{samples[begin].texts[0].tokens, visual[i], limits[begin], sampling, on_token};
      prompt.grids = samples[begin].grids;
      prompt.top_logprobs = options.top_logprobs;
      if (texts) prompt.constraint = std::make_shared<grammar::TokenConstraint>(texts, options.preface);
      prompt.calculator = calculator_.get();
      batch.add(std::move(prompt));
    }
  }
  std::set<int64_t> finished; // but not taken, as one before them goes on
  int64_t taken = 0;
  while (batch.step()) {
    for (GeneratedAnswer& generated : batch.take_finished()) {
      Answer& answer = answers[static_cast<size_t>(generated.number)];
      answer.ids = std::move(generated.tokens);
      answer.ended = generated.ended;
      answer.seconds += generated.seconds;
      finished.insert(generated.number);
    }
    for (; finished.erase(taken) > 0; ++taken) take(answers[static_cast<size_t>(taken)]);
  }
}

GenerationBatch Generator::make_batch(const BatchOptions& options) {
  BatchOptions own = options;
  own.draft_model = draft_model_.get();
  if (!mixed_) mixed_ = load_mixed(); // earlier batches have it, too
  own.mixed = mixed_.get();
  for (const Adapted& adapted : adapted_) own.adapted.push_back({adapted.model.get(), adapted.can_be_mixed != nullptr});
  return {*model_, ops_, ends_, own};
}

std::vector<Prompt> Generator::encode_prompts(std::span<const Sample> samples, at::Tensor* attention, size_t encoder) {
  std::vector<Prompt> prompts;
  for (const Sample& sample : samples) {
    const int64_t room = config().decoder.max_position_embeddings - require_room(sample);
    prompts.push_back(
        {.tokens = sample.texts[0].tokens, .max_tokens = room, .grids = sample.grids, .calculator = calculator_.get()});
  }
  const int64_t max_frames = attention ? std::numeric_limits<int64_t>::max() : frames_at_once(samples);
  for (size_t begin = 0; begin < samples.size();) {
    const auto rest = samples.subspan(begin);
    for (const at::Tensor& visual : encode(rest.first(encoded_together(rest, max_frames)), attention, encoder))
      prompts[begin++].visual = visual;
  }
  return prompts;
}

Answer Generator::answer(const Sample& sample, const GenerateOptions& options, const TokenCallback& on_token) {
  Answer answer;
  answers(
      {sample}, options, [&](const Answer& only) { answer = only; }, on_token);
  return answer;
}

void answer_batch(Generator& answerer, const std::filesystem::path& file, const GenerateOptions& options,
                  const Generator::TakeAnswer& take) {
  const BatchFile batch(file, answerer.config().connector->reads_bytes());
  const auto samples = batch.samples(BatchFile::Texts::prompts, answerer.config().decoder.vocab_size);
  check(answerer, samples, file);
  answerer.answers(samples, options, take);
}

} // namespace fvlm::infer
