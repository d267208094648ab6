// Checks of video plugins: which frame is shown when, and handling of untrusted files.
#include "check/families.h"
#include "check/generic.h"
#include "check/growth.h"
#include "check/video.h"

#include <cmath>
#include <functional>
#include <random>

namespace fvlm::check {
namespace {

// Runs `examine` on the sample of each format that the plugin reads; its text says what is wrong.
Outcome each_format(Context& context, const std::function<std::string(const VideoCase&)>& examine) {
  int done = 0;
  std::string why;
  for (const VideoCase& video : video_cases()) {
    if (fvlm_support answer = video_supports(context, video); answer.score <= 0) {
      why = answer.reason;
      continue;
    }
    if (auto wrong = examine(video); !wrong.empty()) return failed("a {} file: {}", video.format, wrong);
    ++done;
  }
  return done ? ok(fmt::format("{} formats", done))
              : not_applicable("neither mp4 nor y4m files are read, of which samples are here: " + why);
}

std::string status_text(const VideoResult& result) {
  return fmt::format("returned {} ({}): {}", result.status, status_name(result.status), result.error);
}

std::string failure(const VideoResult& result) {
  if (!result.misuse.empty()) return result.misuse;
  return result.status == FVLM_OK ? "" : status_text(result);
}

// "" if decoding at these times gives the expected frames.
std::string wrong_pictures(Context& context, VideoCase video, const std::vector<double>& times) {
  video.times = times;
  const VideoResult result = decode(context, video);
  if (auto wrong = failure(result); !wrong.empty()) return wrong;
  if (result.pictures.size() != times.size())
    return fmt::format("{} pictures for {} times", result.pictures.size(), times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    const int expected = std::min(static_cast<int>(times[i] / video.pattern.frame_seconds() + 1e-6), 11);
    if (const int frame = result.pictures[i].frame(video.pattern); frame != expected)
      return fmt::format("at {} s it shows {}, not frame {}", times[i],
                         frame < 0 ? "none of the file's frames" : fmt::format("frame {}", frame), expected);
  }
  return "";
}

Outcome probes(Context& context) {
  return each_format(context, [&](const VideoCase& video) -> std::string {
    const VideoResult result = probe(context, video);
    if (auto wrong = failure(result); !wrong.empty()) return wrong;
    const bool right = result.width == video.pattern.width && result.height == video.pattern.height &&
                       std::abs(result.seconds - video.pattern.seconds()) < video.pattern.frame_seconds() + 1e-6;
    return right ? "" : fmt::format("{} x {} pixels, {} s", result.width, result.height, result.seconds);
  });
}

Outcome shows_what_began(Context& context) {
  return each_format(context, [&](const VideoCase& video) {
    return wrong_pictures(context, video, {0, 0.1, 0.25, 0.3, 0.49, 0.5, 1.3, 2, 2.7});
  });
}

Outcome alone(Context& context) {
  return each_format(context, [&](const VideoCase& video) -> std::string {
    for (int n = 11; n >= 0; --n)
      if (auto wrong = wrong_pictures(context, video, {n * video.pattern.frame_seconds()}); !wrong.empty())
        return wrong;
    return "";
  });
}

Outcome repeated_times(Context& context) {
  return each_format(context, [&](const VideoCase& video) {
    return wrong_pictures(context, video, {0, 0, 1, 1, 1.1, 2.5, 2.5});
  });
}

Outcome no_times(Context& context) {
  return each_format(context, [&](const VideoCase& video) { return wrong_pictures(context, video, {}); });
}

Outcome behind_the_end(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    if (auto wrong = wrong_pictures(context, video, {1, 3, 4, 1e6}); !wrong.empty()) return wrong;
    video.times = {1, 1e6};
    const VideoResult late = decode(context, video);
    if (std::abs(late.seconds - video.pattern.seconds()) > video.pattern.frame_seconds() + 1e-6)
      return fmt::format("asked for 1e6 s it says that the pictures end at {} s, not {}", late.seconds,
                         video.pattern.seconds());
    video.times = {1};
    const VideoResult early = decode(context, video);
    return std::abs(early.seconds - 1) < 1e-6
               ? ""
               : fmt::format("asked for 1 s it says that the pictures end at {} s", early.seconds);
  });
}

Outcome pure(Context& context) {
  return each_format(context, [&](const VideoCase& video) -> std::string {
    const VideoResult first = decode(context, video);
    Instance fresh(context, context.host());
    for (const VideoResult& again : {decode(context, video), decode(context, video, fresh.get())})
      if (again.pictures != first.pictures) return "other pictures the second time";
    return failure(first);
  });
}

Outcome most_pixels(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    video.most_pixels = video.pattern.width * video.pattern.height;
    if (auto wrong = failure(decode(context, video)); !wrong.empty()) return "at the limit: " + wrong;
    --video.most_pixels;
    const VideoResult result = decode(context, video);
    if (!result.misuse.empty()) return "one pixel beyond most_pixels, " + result.misuse;
    return result.status == FVLM_ERROR_DATA ? "" : "one pixel beyond most_pixels, decode " + status_text(result);
  });
}

Outcome failing_reads(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    const int reads = decode(context, video).reads;
    for (video.fail_at = 0; video.fail_at < std::min(reads, 20); ++video.fail_at) {
      const VideoResult result = decode(context, video);
      if (result.status != FVLM_ERROR_DEVICE)
        return fmt::format("read {} failed, and decode {}", video.fail_at, status_text(result));
    }
    return "";
  });
}

Outcome stops(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    video.stop_at = 1 << 30;
    video.times = {0, 1, 2, 2.5, 2.75};
    const int cancel_checks = decode(context, video).cancel_checks;
    if (cancel_checks < 5) return fmt::format("stop() was asked {} times over 5 pictures", cancel_checks);
    for (video.stop_at = 0; video.stop_at < cancel_checks; video.stop_at += 1 + cancel_checks / 8)
      if (const VideoResult result = decode(context, video); result.status == FVLM_OK || result.after_stop > 1)
        return fmt::format("stop() said so at question {}, {} pictures came after it, and decode {}", video.stop_at,
                           result.after_stop, status_text(result));
    video.stop_at = -1;
    for (video.refuse_at = 0; video.refuse_at < 5; ++video.refuse_at)
      if (const VideoResult result = decode(context, video);
          result.status == FVLM_OK || result.pictures.size() != static_cast<size_t>(video.refuse_at) + 1)
        return fmt::format("picture {} was refused, {} came, and decode {}", video.refuse_at, result.pictures.size(),
                           status_text(result));
    return "";
  });
}

Outcome damage(Context& context) {
  constexpr int cases = 400;
  return each_format(context, [&](const VideoCase& whole) -> std::string {
    std::mt19937_64 random(17);
    for (int i = 0; i < cases; ++i) {
      VideoCase video = whole;
      const size_t at = random() % video.bytes.size();
      if (i % 4 == 0)
        video.bytes.resize(at);
      else if (i % 4 == 1)
        for (size_t k = at; k < std::min(at + 4, video.bytes.size()); ++k) video.bytes[k] = static_cast<char>(0xff);
      else
        video.bytes[at] = static_cast<char>(static_cast<unsigned>(video.bytes[at]) ^ (1U << random() % 8));
      video.stop_at = 1 << 16;
      for (const VideoResult& result : {probe(context, video), decode(context, video)})
        if (!result.misuse.empty() || (result.status != FVLM_OK && result.status != FVLM_ERROR_DATA))
          return fmt::format("case {}, damaged at byte {}: {}", i, at, failure(result));
    }
    return "";
  });
}

// Not applicable if the plugin does not read y4m files.
Outcome each_pattern(Context& context, const std::vector<VideoPattern>& patterns,
                     const std::function<std::string(const VideoCase&)>& examine) {
  for (const VideoPattern& pattern : patterns) {
    const VideoCase video = y4m_case(pattern);
    if (fvlm_support answer = video_supports(context, video); answer.score <= 0)
      return not_applicable(fmt::format("y4m files are not read: {}", answer.reason));
    if (auto wrong = examine(video); !wrong.empty())
      return failed("a y4m file of {} frames of {} x {} pixels, {} in {} s: {}", pattern.frames, pattern.width,
                    pattern.height, pattern.rate, pattern.per, wrong);
  }
  return ok(fmt::format("{} files", patterns.size()));
}

// "" if decoding at the middle of each frame from `first` on gives that frame.
std::string wrong_pixels(Context& context, VideoCase video, fvlm_instance* instance = nullptr, int first = 0) {
  video.times.clear();
  for (int n = first; n < video.pattern.frames; ++n) video.times.push_back((n + 0.5) * video.pattern.frame_seconds());
  const VideoResult result = decode(context, video, instance);
  if (auto wrong = failure(result); !wrong.empty()) return wrong;
  if (result.pictures.size() != video.times.size())
    return fmt::format("{} pictures for {} times", result.pictures.size(), video.times.size());
  for (int n = first; n < video.pattern.frames; ++n)
    if (auto wrong = result.pictures[static_cast<size_t>(n - first)].difference(video.pattern, n); !wrong.empty())
      return fmt::format("picture {}: {}", n, wrong);
  return "";
}

Outcome whole_pictures(Context& context) {
  return each_pattern(context,
                      {{.width = 37, .height = 21, .seed = 1},
                       {.width = 21, .height = 37, .seed = 2},
                       {.width = 64, .height = 5, .seed = 3},
                       {.width = 1, .height = 9, .seed = 4},
                       {.width = 300, .height = 200, .frames = 3, .seed = 5}},
                      [&](const VideoCase& video) { return wrong_pixels(context, video); });
}

Outcome frame_rates(Context& context) {
  return each_pattern(context,
                      {{.width = 8, .height = 8, .frames = 90, .rate = 30000, .per = 1001, .seed = 6},
                       {.width = 8, .height = 8, .frames = 600, .rate = 25, .per = 1, .seed = 7},
                       {.width = 8, .height = 8, .frames = 9, .rate = 1, .per = 3, .seed = 8},
                       {.width = 4, .height = 4, .frames = 300, .rate = 240, .per = 1, .seed = 9},
                       {.width = 4, .height = 4, .frames = 1, .rate = 4, .per = 1, .seed = 10}},
                      [&](const VideoCase& video) { return wrong_pixels(context, video); });
}

// Several files, some of the same size and first line, so that a cache keyed by these would return wrong frames.
Outcome files_in_turn(Context& context) {
  Instance own(context, context.host());
  std::vector<VideoPattern> turns;
  for (const uint64_t seed : {11u, 12u, 11u, 13u, 12u}) {
    turns.push_back({.width = 24, .height = 16, .seed = seed});
    turns.push_back({.width = 16, .height = 24, .seed = seed});
  }
  return each_pattern(context, turns, [&](const VideoCase& video) -> std::string {
    const VideoResult result = probe(context, video, own.get());
    if (auto wrong = failure(result); !wrong.empty()) return wrong;
    if (result.width != video.pattern.width || result.height != video.pattern.height)
      return fmt::format("after other files probe says {} x {} pixels", result.width, result.height);
    // Starts with the last frame, with which the previous file ended too.
    for (const int first : {video.pattern.frames - 1, 0})
      if (const auto wrong = wrong_pixels(context, video, own.get(), first); !wrong.empty())
        return "after other files, " + wrong;
    return "";
  });
}

Outcome probe_reads_little(Context& context) {
  return each_pattern(context, {{.width = 64, .height = 64, .frames = 200, .seed = 14}},
                      [&](const VideoCase& video) -> std::string {
                        const VideoResult result = probe(context, video);
                        if (auto wrong = failure(result); !wrong.empty()) return wrong;
                        return result.bytes_read <= video.bytes.size() / 2
                                   ? ""
                                   : fmt::format("probe read {} of {} bytes, though the first line says it all",
                                                 result.bytes_read, video.bytes.size());
                      });
}

Outcome another_format(Context& context) {
  return each_pattern(context, {{.seed = 15}}, [&](VideoCase video) -> std::string {
    video.bytes.replace(0, 9, "JFIFMPEG2");
    for (const VideoResult& result : {probe(context, video), decode(context, video)})
      if (result.status != FVLM_ERROR_DATA) return "its first word is JFIFMPEG2, and a call " + status_text(result);
    return "";
  });
}

// Calls that end early in every possible way.
Outcome failures_flat(Context& context) {
  if (context.subject.built_in()) return not_applicable("the reference is a part of the engine");
  std::vector<VideoCase> cases;
  for (const VideoCase& whole : video_cases()) {
    if (video_supports(context, whole).score <= 0) continue;
    VideoCase refused = whole, stopped = whole, unread = whole, cut = whole, large = whole, headless = whole;
    refused.refuse_at = 1;
    stopped.stop_at = 2;
    unread.fail_at = 1;
    cut.bytes.resize(cut.bytes.size() / 2 + 7);
    if (whole.format == "y4m") cut.bytes[cut.bytes.find("FRAME", cut.bytes.size() / 4)] = 'f';
    large.most_pixels = 16;
    headless.bytes[0] = 'x';
    for (const VideoCase& video : {refused, stopped, unread, cut, large, headless}) cases.push_back(video);
  }
  if (cases.empty()) return not_applicable("neither mp4 nor y4m files are read, of which samples are here");
  size_t next = 0;
  return expect_no_growth(context, 3000, "calls that ended early", [&] {
    const VideoCase& video = cases[next++ % cases.size()];
    probe(context, video);
    decode(context, video);
  });
}

Outcome nonsense(Context& context) {
  const auto supports = context.table<fvlm_video_v1>().supports;
  for (const VideoCase& video : video_cases()) {
    const char* format = video.format.c_str();
    if (query_support(supports, fvlm_video_query{0, format, 100}).score > 0)
      return failed("supports() says yes to struct_size 0");
    if (query_support(supports, fvlm_video_query{sizeof(fvlm_video_query), format, 0}).score > 0)
      return failed("supports() says yes to pictures of no pixels");
  }
  if (query_support(supports, fvlm_video_query{sizeof(fvlm_video_query), "no such format", 100}).score > 0)
    return failed("supports() says yes to files that end in .no such format");
  return ok();
}

} // namespace

Table video_table() {
  Table table{"video", {}, {}};
  append(
      table.checks,
      {
          {"probes", "probe() tells the length and size of a file", probes},
          {"shows_what_began", "the picture of a time is the last that began by then", shows_what_began},
          {"alone", "a time alone shows the same picture as among others", alone, "shows_what_began"},
          {"repeated_times", "equal times get a picture each", repeated_times, "shows_what_began"},
          {"no_times", "no times, no pictures", no_times},
          {"behind_the_end", "behind the end the last picture stands in, and the end is told", behind_the_end,
           "shows_what_began"},
          {"whole_pictures", "every pixel lies in its place and has its colour, whatever the width and height",
           whole_pictures, "shows_what_began"},
          {"frame_rates", "frames of any rate, more than 8 bits count", frame_rates, "shows_what_began"},
          {"files_in_turn", "one instance reads files in turn that are alike but for their pictures", files_in_turn,
           "whole_pictures"},
          {"probe_reads_little", "probe() reads no more of a file than it needs", probe_reads_little, "probes"},
          {"pure", "the same file gives the same pictures, whatever was decoded before", pure},
          {"most_pixels", "pictures of more than most_pixels are refused as data", most_pixels},
          {"failing_reads", "a read that fails ends the call as the device's error", failing_reads},
          {"stops", "stop() is asked, and it and a refused picture end the call", stops},
          {"damage", "damaged files end in pictures or as data errors, reading nothing outside the file", damage},
          {"another_format", "a file that is none of its format is refused as data", another_format},
          {"failures_flat", "memory does not grow over 3,000 calls that are stopped, refused or fail", failures_flat},
          {"supports_nonsense", "supports() refuses impossible queries", nonsense},
      });
  append(table.checks, generic_host_checks());
  return table;
}

} // namespace fvlm::check
