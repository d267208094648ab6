// fvlm-engine generate: answers a question about an image, a video or a text, the prompts of a batch, or the samples of
// files.
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/adapter_options.h"
#include "cli/draft_options.h"
#include "cli/execution_options.h"
#include "cli/generate_data.h"
#include "cli/media_options.h"
#include "cli/named_model.h"
#include "cli/plugin_options.h"
#include "cli/sampling_options.h"
#include "cli/tensor_module.h"
#include "data/chat.h"
#include "data/samples/question.h"
#include "data/stop_texts.h"
#include "data/streaming_detokenizer.h"
#include "data/visual_marks.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/pattern.h"
#include "infer/generator.h"
#include "infer/token_table.h"
#include "model/weights/model_file.h"
#include "model/weights/visual_rows.h"
#include "serve/prompt_writer.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

namespace fvlm::cli {
namespace {

// The text without special tokens. Nothing where there is no tokenizer, or where the model generated an id that the
// tokenizer does not have.
std::optional<std::string> text_of(const std::optional<Tokenizer>& tokenizer, const std::vector<int64_t>& ids) {
  if (!tokenizer) return std::nullopt;
  try {
    return tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true);
  } catch (const Error& error) {
    log_warning("{}", error.text());
    return std::nullopt;
  }
}

double tokens_per_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

Json answer_json(const infer::Answer& answer, const std::optional<std::string>& text) {
  return {{"frames", answer.frames},
          {"prompt", answer.prompt},
          {"ids", answer.ids},
          {"text", text ? Json(*text) : Json()},
          {"ended", answer.ended},
          {"seconds", answer.seconds},
          {"tokens_per_second", tokens_per_second(std::ssize(answer.ids), answer.seconds)}};
}

constexpr const char* form_option_names[] = {"json-schema", "grammar", "regex", "choice"};

grammar::Grammar form_of(const ParsedOptions& parsed, const std::string& option) {
  constexpr uint64_t most_bytes = uint64_t{1} << 20; // of a file
  const std::vector<std::string> values = parsed.values(option);
  if (option == "json-schema") return grammar::of_json_schema(read_file(values.front(), most_bytes), values.front());
  if (option == "grammar") return grammar::of_gbnf(read_file(values.front(), most_bytes));
  for (const std::string& value : values)
    if (value.empty() || !is_utf8(value)) throw Error(ErrorKind::usage, "expected a text in UTF-8 that is not empty");
  return option == "regex" ? grammar::of_pattern(values.front()) : grammar::of_choices(values);
}

// What answers have to be; null: anything.
std::shared_ptr<const grammar::Grammar> form_of(const ParsedOptions& parsed) {
  std::vector<std::string> given;
  for (const char* option : form_option_names)
    if (parsed.value(option)) given.emplace_back(option);
  if (given.empty()) return {};
  if (parsed.flag("ignore-eos")) given.emplace_back("ignore-eos");
  if (given.size() > 1) throw Error(ErrorKind::usage, "--{} and --{} are mutually exclusive", given[0], given[1]);
  try {
    return std::make_shared<const grammar::Grammar>(form_of(parsed, given.front()));
  } catch (Error& error) {
    if (error.where().empty())
      error.at(given.front() == "json-schema" || given.front() == "grammar" ? *parsed.value(given.front())
                                                                            : "--" + given.front());
    throw;
  }
}

int answer_prompts(const ParsedOptions& parsed, const std::string& model, infer::Generator& answerer,
                   const infer::GenerateOptions& options) {
  const auto tokenizer = tokenizer_of(model);
  Json samples = Json::array();
  int64_t tokens = 0;
  const double begin = steady_seconds();
  infer::answer_batch(answerer, *parsed.value("batch"), options, [&](const infer::Answer& answer) {
    const auto text = text_of(tokenizer, answer.ids);
    tokens += std::ssize(answer.ids);
    if (!parsed.flag("json"))
      fmt::print("{}\n{}\n\n",
                 styled(fmt::format("sample {}: {}, {}, {}{}", samples.size(), counted(answer.frames, "frame"),
                                    counted(answer.prompt, "prompt token"),
                                    counted(std::ssize(answer.ids), "new token"), answer.ended ? "" : ", not finished"),
                        Style::dim),
                 text ? strip_control_characters(*text) : fmt::format("[{}]", fmt::join(answer.ids, ", ")));
    samples.push_back(answer_json(answer, text));
  });
  const double seconds = steady_seconds() - begin;
  if (parsed.flag("json"))
    fmt::print("{}", dump({{"samples", samples},
                           {"tokens", tokens},
                           {"seconds", seconds},
                           {"tokens_per_second", tokens_per_second(tokens, seconds)}}));
  else
    log_info("{} in {:.2f} s: {:.1f} a second", counted(tokens, "token"), seconds, tokens_per_second(tokens, seconds));
  return 0;
}

// What a question becomes for the model.
struct Prompt {
  model::Sample sample;            // with the text of the prompt alone
  std::vector<int64_t> end_tokens; // that end the answer besides the model's own
  grammar::Preface preface = {};   // thoughts that stand before what has a form
};

// As samples with a context and a question are trained on: the encoder reads the bytes of the source.
Prompt question_about_context(const ParsedOptions& parsed, const Tokenizer& tokenizer, const InputSettings& input,
                              const plan::VisualRows& rows) {
  std::vector<const char*> of_images = {"image", "video"};
  of_images.insert(of_images.end(), std::begin(media_option_names), std::end(media_option_names));
  for (const char* name : of_images)
    if (parsed.value(name))
      throw Error(ErrorKind::usage, "--{} goes with an encoder of images, and this model's reads text as bytes", name)
          .advise("give the text that the question is about with --context TEXT");
  const auto source =
      source_of(input.questions, {parsed.value_or("context", ""), *parsed.value("prompt"), ""}, rows.max_bytes);
  if (!source)
    throw Error(ErrorKind::usage, "--prompt: the question leaves nothing of the encoder's {} bytes", rows.max_bytes)
        .advise("ask a shorter question");
  Prompt prompt;
  prompt.sample.frames = at::empty({std::ssize(*source)}, at::kByte);
  std::copy(source->begin(), source->end(), prompt.sample.frames.data_ptr<uint8_t>());
  SampleText text = QuestionEncoder(tokenizer, input.questions).behind_rows(rows.per_frame, "");
  const auto answer = std::ranges::find(text.answer_mask, 1) - text.answer_mask.begin();
  prompt.end_tokens = {text.ids.back()};
  prompt.sample.texts.push_back({{text.ids.begin(), text.ids.begin() + answer}, {}});
  return prompt;
}

Prompt question_about_images(const ParsedOptions& parsed, const Tokenizer& tokenizer, const InputSettings& input,
                             const plan::VisualRows& visual, Registry& registry) {
  if (parsed.value("context"))
    throw Error(ErrorKind::usage, "--context goes with an encoder of bytes, and this model's reads images")
        .advise("put the text into --prompt");
  serve::ChatRequest request;
  request.turns = {{"user", *parsed.value("prompt")}};
  request.spells_special_tokens = parsed.flag("special-tokens");
  const auto images = parsed.values("image"), videos = parsed.values("video");
  if (!images.empty() && !videos.empty()) throw Error(ErrorKind::usage, "--image and --video are mutually exclusive");
  if (videos.size() > 1)
    throw Error(ErrorKind::usage, "--video: a prompt has one video, got {}", videos.size())
        .advise("ask about each in a command of its own");
  std::string marks;
  for (const std::string& image : images) {
    request.images.push_back(read_image(image, "use --video for videos and folders of images"));
    marks += image_mark;
  }
  if (!videos.empty()) {
    request.frames = read_video(videos.front(), input.media, registry);
    marks = video_mark;
  }
  if (visual.in_place && !marks.empty()) mention_frames(request.turns, marks);
  const serve::PromptWriter writer(
      tokenizer, visual, {input.media.preparation(), input.media.image_frames, input.system, input.chat_template});
  (void)writer.chat(); // throws where the model has none
  serve::WrittenPrompt written = writer.write(request);
  return {std::move(written.sample), {}, writer.preface_of(written.thinking)};
}

int answer_question(const ParsedOptions& parsed, const std::string& model, infer::Generator& answerer,
                    infer::GenerateOptions options, Registry& registry) {
  const auto tokenizer = tokenizer_of(model);
  if (!tokenizer)
    throw Error(ErrorKind::data, "--prompt needs a tokenizer, and there is no decoder/tokenizer.json")
        .at(model)
        .advise("use --batch for prompts as token ids");
  tokenizer->check_vocabulary_size(answerer.config().decoder.vocab_size, model);
  const InputSettings input = input_settings(parsed, model, answerer.config(), *tokenizer);
  const auto visual = visual_rows(*answerer.config().connector, answerer.config().vision, input.media.image_size);
  const Prompt prompt = visual.max_bytes > 0 ? question_about_context(parsed, *tokenizer, input, visual)
                                             : question_about_images(parsed, *tokenizer, input, visual, registry);
  options.end_tokens = prompt.end_tokens;
  options.preface = prompt.preface;
  if (options.form) options.tokens = infer::token_table_of(*tokenizer);

  const bool json = parsed.flag("json");
  StreamingDetokenizer stream(*tokenizer,
                              parsed.flag("special-tokens") ? special_texts(*tokenizer) : std::vector<std::string>());
  StopTexts stops(parsed.values("stop"));
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    if (json) return;
    fmt::print("{}", strip_control_characters(piece));
    std::fflush(stdout);
  };
  const auto answer = answerer.answer(prompt.sample, options, [&](const infer::GeneratedToken& token) {
    emit(stops.add(stream.add(static_cast<TokenId>(token.id))));
    return !stops.found();
  });
  emit(stops.add(stream.finish(), false));
  emit(stops.finish());
  if (json) {
    Json document = answer_json(answer, text);
    document["stopped"] = stops.found();
    fmt::print("{}", dump(document));
    return 0;
  }
  fmt::print("\n");
  log_info("{}, {}, {}{} in {:.2f} s: {:.1f} tokens/s", counted(answer.frames, "frame"),
           counted(answer.prompt, "prompt token"), counted(std::ssize(answer.ids), "new token"),
           answer.ended || stops.found() ? "" : ", not finished", answer.seconds,
           tokens_per_second(std::ssize(answer.ids), answer.seconds));
  return 0;
}

Options generate_options() {
  Options options(
      "generate MODEL --prompt TEXT [--image F]... [--max-tokens N] [--temperature T] [--top-p P] [--seed N]\n"
      "  fvlm-engine generate MODEL --prompt TEXT [--video F | --context TEXT]\n"
      "  fvlm-engine generate MODEL --data F --answers OUT.jsonl [--prompt TEXT] [--max-tokens N]\n"
      "  fvlm-engine generate MODEL --batch B.safetensors [--max-tokens N] [--ignore-eos] [--json]",
      "Answer a question about an image or a video, or about a text where the model's encoder reads bytes, and print\n"
      "the tokens as they are generated. A video is sampled at one frame per second. Decoding is greedy unless a\n"
      "temperature is given; the same seed gives the same answer.\n"
      "For a checkpoint of a run, the system turn, number of frames, image size and form of questions about a text\n"
      "default to those of its training (from the run's plan.json). --batch takes a file as `trace` does, with each\n"
      "sample's text as its prompt and no loss_mask; without a tokenizer.json it prints token ids. Times include\n"
      "encoding frames and prompts.\n"
      "--data asks every sample of files in the forms of a recipe's `shards` (docs/data.md), many at once, and writes "
      "a\n"
      "line of JSON for each in their order: its answer, and the sample's own as `expected`; or why it has none, as\n"
      "`error`. The same command goes on where it was cut: samples that OUT.jsonl has are not asked again.",
      "generate runs/quickstart --video clip.mp4 --prompt \"Which colour came first?\"");
  with_draft_options(
      with_sampling_options(
          with_media_options(
              with_answering_options(options)
                  .positional("MODEL", named_model_help)
                  .value("prompt", "TEXT",
                         "the user's turn; <image> and <video> in it mark where frames stand, if the model takes them "
                         "in a text; with --data that of samples without one")
                  .repeated_value(
                      "image", "FILE",
                      "a JPEG, PNG, WebP or GIF, whose first frame is shown (repeatable: several images of one "
                      "prompt, before its text unless each has its <image> there)")
                  .repeated_value("video", "FILE",
                                  "a video, or a folder of images in the order of their names, 2.jpg before 10.jpg")
                  .value("context", "TEXT", "the text that the question is about, for an encoder that reads bytes"))
              .value("max-tokens", "N", "generate at most N tokens, within the decoder's positions; default 32")))
      .repeated_value("stop", "TEXT", "stop before this text (repeatable)")
      .value("json-schema", "FILE", "answer with JSON that fits this JSON Schema (docs/serving.md says which)")
      .value("grammar", "FILE", "answer with a text that this grammar in GBNF has (docs/serving.md says which)")
      .value("regex", "PATTERN", "answer with a text that matches this regular expression from end to end")
      .repeated_value("choice", "TEXT", "answer with one of these texts (repeatable)")
      .value("batch", "FILE", "prompts as token ids, safetensors");
  with_data_options(with_adapter_option(options))
      .value("limit", "N", "the same as --max-tokens")
      .flag("ignore-eos", "do not stop at end-of-sequence tokens")
      .flag("special-tokens",
            "let the prompt spell special tokens, and show those of the answer, as Granite Docling's of a page's parts")
      .flag("json", "print one JSON document on standard output");
  return options;
}

// What is asked: the samples of files, the prompts of a batch, or one question.
enum class Mode { data, batch, question };

Mode mode_of(const ParsedOptions& parsed) {
  constexpr const char* advice =
      "give --prompt TEXT, with --image, --video or --context; --data FILE and --answers OUT.jsonl; or --batch FILE";
  const bool data = !parsed.values("data").empty(), batch = parsed.value("batch").has_value();
  if (batch && (data || parsed.value("prompt")))
    throw Error(ErrorKind::usage, "--batch and --{} are mutually exclusive", data ? "data" : "prompt").advise(advice);
  if (!batch && !data && !parsed.value("prompt"))
    throw Error(ErrorKind::usage, "--prompt, --data or --batch is missing").advise(advice);
  if (data && !parsed.value("answers"))
    throw Error(ErrorKind::usage, "--data needs --answers OUT.jsonl, the file that answers are written into");
  std::vector<const char*> refused;
  if (data) refused = {"image", "video", "context"};
  if (batch) refused.assign(std::begin(media_option_names), std::end(media_option_names));
  if (batch) refused.insert(refused.end(), {"image", "video", "context", "stop"});
  if (batch) refused.insert(refused.end(), std::begin(form_option_names), std::end(form_option_names));
  for (const char* name : refused)
    if (parsed.value(name)) throw Error(ErrorKind::usage, "--{} needs --prompt{}", name, data ? " without --data" : "");
  if (batch && parsed.flag("special-tokens"))
    throw Error(ErrorKind::usage, "--special-tokens needs --prompt or --data");
  for (const char* name : {"answers", "cache-rows", "root", "field"})
    if (!data && parsed.value(name)) throw Error(ErrorKind::usage, "--{} needs --data", name);
  return data ? Mode::data : batch ? Mode::batch : Mode::question;
}

infer::GenerateOptions answer_options_of(const ParsedOptions& parsed) {
  if (parsed.value("max-tokens") && parsed.value("limit"))
    throw Error(ErrorKind::usage, "--max-tokens and --limit are the same option").advise("give one of them");
  infer::GenerateOptions options;
  options.limit = parsed.integer_or("max-tokens", parsed.integer_or("limit", options.limit, 1), 1);
  options.ignore_eos = parsed.flag("ignore-eos");
  options.sampling = sampling_of(parsed);
  options.draft_tokens = draft_tokens_of(parsed);
  options.form = form_of(parsed);
  // Refused before any work is done, and not as the error of every sample.
  (void)infer::Sampler(options.sampling);
  (void)StopTexts(parsed.values("stop"));
  return options;
}

} // namespace

int generate_answers(Arguments arguments) {
  const auto parsed = generate_options().parse(arguments);
  if (!parsed) return 0;
  const Mode mode = mode_of(*parsed);
  const infer::GenerateOptions answer_options = answer_options_of(*parsed);
  if (mode == Mode::data) return answer_data(*parsed, answer_options);
  const auto execution = answering_execution_of(*parsed);
  const auto registry = open_registry(*parsed);
  const std::string model = model_named(*parsed->value("MODEL")).string();
  infer::Generator answerer(model, execution, *registry);
  log_info("{} computes {}", model, execution.text());
  use_adapter(*parsed, answerer);
  use_draft_model(*parsed, model, answerer);
  return mode == Mode::batch ? answer_prompts(*parsed, model, answerer, answer_options)
                             : answer_question(*parsed, model, answerer, answer_options, *registry);
}

} // namespace fvlm::cli
