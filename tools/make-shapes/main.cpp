// make-shapes: a synthetic data set of coloured shapes that move, with captions, questions, preference pairs and text.
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "make-shapes/dataset.h"
#include "make-shapes/program.h"
#include "make-shapes/samples.h"
#ifdef FVLM_WRITES_MP4
#include "data/media/write_mp4.h"
#endif

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <thread>

namespace fvlm::shapes {
namespace {

Error usage(std::string what) {
  return {ErrorKind::usage, std::move(what)};
}

// `given`: the option as it was written, of which `text` is a part.
int64_t integer(std::string_view text, int64_t min, int64_t max, const std::string& option, std::string_view given) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() || number < min || number > max)
    throw usage(fmt::format("{}: expected an integer from {} to {}, got '{}'", option, min, max, given));
  return number;
}

// "32" or "640x480".
void read_size(const std::string& text, Options& options) {
  size_t cross = text.find('x');
  const std::string_view all = text;
  options.width = integer(all.substr(0, cross), 8, 4096, "--size", all);
  options.height = cross == std::string::npos ? options.width : integer(all.substr(cross + 1), 8, 4096, "--size", all);
}

// "captions=500,pairs=20"; without it all parts.
void read_samples(const std::vector<std::string>& lists, Options& options) {
  std::vector<std::string> names;
  for (const Part& part : parts()) {
    names.emplace_back(part.name);
    if (lists.empty() && part.samples > 0) options.samples[names.back()] = part.samples;
  }
  for (const auto& list : lists)
    for (const auto& entry : split(list, ',')) {
      size_t equals = entry.find('=');
      std::string name = entry.substr(0, equals);
      if (equals == std::string::npos || std::ranges::find(names, name) == names.end()) {
        auto near = nearest(name, names);
        throw usage(fmt::format("--samples: '{}' is no PART=N", entry))
            .advise(near ? fmt::format("did you mean {}=1000?", *near) : "parts: " + join(names, ", "));
      }
      const std::string_view count = std::string_view(entry).substr(equals + 1);
      options.samples[name] = integer(count, 1, 100'000'000, "--samples " + name, count);
    }
}

std::string one_of(const cli::ParsedOptions& parsed, const char* name, std::vector<std::string> words) {
  std::string word = parsed.value_or(name, words.front());
  if (std::ranges::find(words, word) == words.end())
    throw usage(fmt::format("--{} is {}, not '{}'", name, join_or(words), word));
  return word;
}

#ifdef FVLM_WRITES_MP4
constexpr const char* format_help = "of the frames (png: at 32 pixels exact, and smaller than jpeg)";
#else
constexpr const char* format_help =
    "of the frames (png: at 32 pixels exact, and smaller than jpeg); mp4: only in "
    "make-shapes-mp4, which `ninja -C build/cpu make-shapes-mp4` builds where FFmpeg is";
#endif

int run(cli::Arguments arguments) {
  cli::Options described(
      "--out DIR [--seed N] [--samples PART=N,...] [--frames N] [--size N|WxH] [--format F]",
      "Makes shards of coloured shapes that move over a few frames, with captions, questions and answers, preference\n"
      "pairs, multiple choice and plain text, a tokenizer for them, and held-out parts that share no clip with the\n"
      "others. The same options give the same bytes. What is there already, made with the same options, stays.",
      "--out data/shapes");
  std::string counts;
  for (const Part& part : parts()) counts += fmt::format("{}{}={}", counts.empty() ? "" : ",", part.name, part.samples);
  described.of_program("make-shapes")
      .required_value("out", "DIR", "the data set; made anew if it was made with other options")
      .value("seed", "N", "another data set for another number (1)")
      .repeated_value("samples", "PART=N,...", "only these parts, of so many samples each (" + counts + ")")
      .value("frames", "N", "of each clip, 2 to 64 (4)")
      .value("size", "N|WxH", "pixels of a frame (32)")
      .value("format", "png|jpeg|mp4", format_help)
      .value("quality", "N", "of JPEG frames, 1 to 100 (90)")
      .value("ground", "plain|textured", "what lies behind the shapes; textured: as much detail as a photo has (plain)")
      .value("shard-size", "N", "samples of a shard (2000)")
      .value("threads", "N", "one a core if not given; changes nothing in the data");
  auto parsed = described.parse(arguments);
  if (!parsed) return 0;
  Options options;
  options.out = *parsed->value("out");
  options.seed = static_cast<uint64_t>(parsed->integer_or("seed", 1, 0));
  read_samples(parsed->values("samples"), options);
  options.frames = parsed->integer_or("frames", options.frames, 2, 64);
  read_size(parsed->value_or("size", "32"), options);
  options.format = one_of(*parsed, "format", {"png", "jpeg", "mp4"});
#ifdef FVLM_WRITES_MP4
  options.write_clip = [](std::span<const Image> frames) { return write_mp4(frames, {.frames_per_second = 1}); };
#endif
  if (options.format == "mp4" && !options.write_clip)
    throw usage("this program writes no mp4")
        .advise(
            "make-shapes-mp4 does: where FFmpeg's libraries are, `ninja -C build/cpu make-shapes-mp4` builds it beside "
            "this program");
  if (options.format == "mp4" && (options.width % 2 != 0 || options.height % 2 != 0))
    throw usage(fmt::format("--size: an mp4 has even sizes, not {} x {}", options.width, options.height));
  options.quality = static_cast<int>(parsed->integer_or("quality", options.quality, 1, 100));
  options.ground = one_of(*parsed, "ground", {"plain", "textured"}) == "plain" ? Ground::plain : Ground::textured;
  options.shard_size = parsed->integer_or("shard-size", options.shard_size, 1, 1'000'000);
  options.threads = static_cast<int>(
      parsed->integer_or("threads", std::max<int64_t>(1, std::thread::hardware_concurrency()), 1, 256));

  if (is_made(options)) {
    fmt::print("{}: there already, made with these options\n", options.out.string());
    return 0;
  }
  const double started = steady_seconds();
  Made made;
  {
    const InterruptibleWrites interruptible;
    cli::Progress progress("making " + options.out.string());
    made = make(options, [&](int64_t done, int64_t total) { progress.samples(done, total); });
  }
  const double seconds = steady_seconds() - started;
  fmt::print("{}: {} of {} frames in {}, {}, made in {:.1f} s\n", options.out.string(), counted(made.samples, "sample"),
             options.frames, counted(made.shards, "shard"), human_bytes(made.bytes), seconds);
  return 0;
}

} // namespace
} // namespace fvlm::shapes

int main(int count, char** words) {
  return fvlm::shapes::run_program("make-shapes", count, words, fvlm::shapes::run);
}
