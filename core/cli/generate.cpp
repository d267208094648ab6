// fvlm-engine generate: a model's answer to a question about a picture or a video, or to the prompts of a batch.
#include "model/generate.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/terminal.h"
#include "cli/execution_options.h"
#include "cli/media_options.h"
#include "cli/model_option.h"
#include "cli/plugin_options.h"
#include "cli/tensor_module.h"
#include "data/chat.h"
#include "data/media/decode_image.h"
#include "data/media/video.h"
#include "data/text_stream.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>

namespace fvlm::cli {
namespace {

// Of the model directory; none where it has none.
std::optional<Tokenizer> tokenizer_of(const std::filesystem::path& model) {
  const auto file = model / "decoder" / "tokenizer.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Tokenizer::from_file(file);
}

// Without special tokens; none where there is no tokenizer, or where the model made an id that it does not have.
std::optional<std::string> text_of(const std::optional<Tokenizer>& tokenizer, const std::vector<int64_t>& ids) {
  if (!tokenizer) return std::nullopt;
  try {
    return tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true);
  } catch (const Error& error) {
    log_warning("{}", error.text());
    return std::nullopt;
  }
}

double a_second(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

Json answer_json(const model::Answer& answer, const std::optional<std::string>& text) {
  return {{"frames", answer.frames},
          {"prompt", answer.prompt},
          {"ids", answer.ids},
          {"text", text ? Json(*text) : Json()},
          {"ended", answer.ended},
          {"seconds", answer.seconds},
          {"tokens_per_second", a_second(std::ssize(answer.ids), answer.seconds)}};
}

int answer_prompts(const ParsedOptions& parsed, const std::string& model, model::Answerer& answerer,
                   const model::AnswerOptions& options) {
  const auto tokenizer = tokenizer_of(model);
  Json samples = Json::array();
  int64_t tokens = 0;
  double seconds = 0;
  model::answer_batch(answerer, *parsed.value("batch"), options, [&](const model::Answer& answer) {
    const auto text = text_of(tokenizer, answer.ids);
    tokens += std::ssize(answer.ids);
    seconds += answer.seconds;
    if (!parsed.flag("json"))
      fmt::print("{}\n{}\n\n",
                 styled(fmt::format("sample {}: {} frames, a prompt of {}, {} new tokens{}", samples.size(),
                                    answer.frames, answer.prompt, answer.ids.size(), answer.ended ? "" : ", not ended"),
                        Style::dim),
                 text ? without_commands(*text) : fmt::format("[{}]", fmt::join(answer.ids, ", ")));
    samples.push_back(answer_json(answer, text));
  });
  if (parsed.flag("json"))
    fmt::print("{}", dump({{"samples", samples},
                           {"tokens", tokens},
                           {"seconds", seconds},
                           {"tokens_per_second", a_second(tokens, seconds)}}));
  else
    log_info("{} tokens in {:.2f} s: {:.1f} a second", tokens, seconds, a_second(tokens, seconds));
  return 0;
}

at::Tensor frames_of(const ParsedOptions& parsed, MediaOptions options, Registry& registry) {
  const auto image = parsed.value("image"), video = parsed.value("video");
  if (image && video) throw Error(ErrorKind::usage, "--image and --video: one of them");
  if (!image && !video) return {};
  if (image && !looks_like_image(MappedFile::open(*image)->bytes()))
    throw Error(ErrorKind::data, "this is no JPEG or PNG")
        .at(*image)
        .advise("--video takes videos and folders of pictures");
  const auto decoder = choose_video_decoder(registry, {});
  options.video = decoder ? &*decoder : nullptr;
  const MediaFile media(image ? *image : *video, options);
  at::Tensor frames = at::empty({media.frames(), 3, options.image_size, options.image_size}, at::kFloat);
  media.decode({frames.data_ptr<float>(), static_cast<size_t>(frames.numel())});
  return frames;
}

int answer_question(const ParsedOptions& parsed, const std::string& model, model::Answerer& answerer,
                    const model::AnswerOptions& options, Registry& registry) {
  const auto tokenizer = tokenizer_of(model);
  if (!tokenizer)
    throw Error(ErrorKind::data, "there is no decoder/tokenizer.json, and --prompt is text")
        .at(model)
        .advise("--batch takes prompts as token ids");
  tokenizer->require_fit(answerer.config().decoder.vocab_size, model);
  const std::vector<Turn> turns = {{"user", *parsed.value("prompt")}};
  const AsTrained as = as_trained(parsed, model, answerer.config());
  const auto prompt = ChatTemplate(*tokenizer).prompt(turns, as.system);
  const at::Tensor frames = frames_of(parsed, as.media, registry);

  const bool json = parsed.flag("json");
  TextStream stream(*tokenizer, parsed.values("stop"));
  std::string text;
  const auto say = [&](const std::string& piece) {
    text += piece;
    if (json) return;
    fmt::print("{}", without_commands(piece));
    std::fflush(stdout);
  };
  const auto answer = answerer.answer(frames, {prompt.begin(), prompt.end()}, options, [&](int64_t token) {
    say(stream.add(static_cast<TokenId>(token)));
    return !stream.stopped();
  });
  say(stream.finish());
  if (json) {
    Json document = answer_json(answer, text);
    document["stopped"] = stream.stopped();
    fmt::print("{}", dump(document));
    return 0;
  }
  fmt::print("\n");
  log_info("{} frames, a prompt of {}, {} new tokens{} in {:.2f} s: {:.1f} a second", answer.frames, answer.prompt,
           answer.ids.size(), answer.ended || stream.stopped() ? "" : ", not ended", answer.seconds,
           a_second(std::ssize(answer.ids), answer.seconds));
  return 0;
}

} // namespace

int generate_answers(Arguments arguments) {
  Options options(
      "generate MODEL --prompt TEXT [--image F | --video F] [--max-tokens N] [--temperature T] [--top-p P] [--seed N]\n"
      "  fvlm-engine generate MODEL --batch B.safetensors [--max-tokens N] [--ignore-eos] [--json]",
      "Answers a question about a picture or a video, frame by frame and token by token, as it is made. A video gives\n"
      "a frame a second. Always the likeliest token, unless a temperature is given; a seed repeats its answer. System "
      "turn,\n"
      "frames and sizes are those that a checkpoint was trained with, where its run's plan.json lies two folders up.\n"
      "A batch is one as `trace` reads it: each sample's text is its prompt; it needs no loss_mask. Of it, ids are\n"
      "printed where the model directory has no tokenizer.json. Times include frames and prompts.",
      "generate runs/quickstart/instruct/step-001500 --video clip.mp4 --prompt \"Which colour came first?\"");
  with_media_options(
      with_execution_options(options)
          .positional("MODEL", "a model directory, a checkpoint, or a run's folder: its newest checkpoint")
          .value("prompt", "TEXT", "what the user says; the chat template comes around it")
          .value("image", "FILE", "a JPEG or PNG to look at")
          .value("video", "FILE",
                 "a video, or a folder of pictures, its frames in the order of their names, 2.jpg before 10.jpg"))
      .value("max-tokens", "N", "at most N new tokens (32), and no more than the decoder has positions for")
      .value("temperature", "T", "draw tokens at random: 1 as likely as the model finds them, less: rather likely ones")
      .value("top-p", "P", "draw among the likeliest tokens that have this share of the probability together (1)")
      .value("seed", "N", "another answer for another number (0)")
      .value("stop", "TEXT", "ends the answer where it would say this; may be given several times")
      .value("batch", "FILE", "prompts in a file, safetensors")
      .value("limit", "N", "the same as --max-tokens")
      .flag("ignore-eos", "do not stop at the tokens that end an answer")
      .flag("json", "one JSON document on standard output");
  const auto parsed = options.parse(arguments);
  if (!parsed) return 0;
  const bool batch = parsed->value("batch").has_value();
  if (batch == parsed->value("prompt").has_value())
    throw Error(ErrorKind::usage, batch ? "--batch and --prompt: one of them" : "there is nothing to answer")
        .advise("--prompt TEXT, with --image or --video; or --batch FILE");
  std::vector<const char*> with_prompt = {"image", "video", "stop"};
  with_prompt.insert(with_prompt.end(), std::begin(media_option_names), std::end(media_option_names));
  for (const char* name : with_prompt)
    if (batch && parsed->value(name)) throw Error(ErrorKind::usage, fmt::format("--{} goes with --prompt", name));
  model::AnswerOptions wanted;
  wanted.limit = parsed->integer_or("max-tokens", parsed->integer_or("limit", wanted.limit));
  if (wanted.limit < 1)
    throw Error(ErrorKind::usage, fmt::format("--max-tokens (--limit) wants 1 token or more, not {}", wanted.limit));
  wanted.ignore_ends = parsed->flag("ignore-eos");
  wanted.sampling.temperature = parsed->number_or("temperature", parsed->value("top-p") ? 1 : 0);
  wanted.sampling.top_p = parsed->number_or("top-p", 1);
  wanted.sampling.seed = static_cast<uint64_t>(parsed->integer_or("seed", 0));
  const auto execution = execution_of(*parsed);
  const auto registry = open_registry(*parsed);
  const std::string model = model_named(*parsed->value("MODEL")).string();
  model::Answerer answerer(model, execution, *registry);
  return batch ? answer_prompts(*parsed, model, answerer, wanted)
               : answer_question(*parsed, model, answerer, wanted, *registry);
}

} // namespace fvlm::cli
