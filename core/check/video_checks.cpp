// What a reader of video has to get right: which picture is shown when, and how it deals with files from strangers.
#include "check/families.h"
#include "check/generic.h"
#include "check/video.h"
#include "check/workbench.h"

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

std::string status_text(const Watched& watched) {
  return fmt::format("returned {} ({}): {}", watched.status, status_name(watched.status), watched.error);
}

std::string trouble(const Watched& watched) {
  if (!watched.misuse.empty()) return watched.misuse;
  return watched.status == FVLM_OK ? "" : status_text(watched);
}

// "" where these are the pictures of the times.
std::string wrong_pictures(Context& context, VideoCase video, const std::vector<double>& times) {
  video.times = times;
  const Watched watched = decode(context, video);
  if (auto wrong = trouble(watched); !wrong.empty()) return wrong;
  if (watched.pictures.size() != times.size())
    return fmt::format("{} pictures for {} times", watched.pictures.size(), times.size());
  for (size_t i = 0; i < times.size(); ++i) {
    const int expected = std::min(static_cast<int>(times[i] / video_frame_seconds + 1e-6), 11);
    if (const int frame = watched.pictures[i].frame(); frame != expected)
      return fmt::format("at {} s it shows {}, not frame {}", times[i],
                         frame < 0 ? "none of the file's frames" : fmt::format("frame {}", frame), expected);
  }
  return "";
}

Outcome probes(Context& context) {
  return each_format(context, [&](const VideoCase& video) -> std::string {
    const Watched watched = probe(context, video);
    if (auto wrong = trouble(watched); !wrong.empty()) return wrong;
    const bool right = watched.width == video_side && watched.height == video_side &&
                       std::abs(watched.seconds - video_seconds) < video_frame_seconds + 1e-6;
    return right ? "" : fmt::format("{} x {} pixels, {} s", watched.width, watched.height, watched.seconds);
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
      if (auto wrong = wrong_pictures(context, video, {n * video_frame_seconds}); !wrong.empty()) return wrong;
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
    const Watched late = decode(context, video);
    if (std::abs(late.seconds - video_seconds) > video_frame_seconds + 1e-6)
      return fmt::format("asked for 1e6 s it says that the pictures end at {} s, not {}", late.seconds, video_seconds);
    video.times = {1};
    const Watched early = decode(context, video);
    return early.seconds >= 1 ? "" : fmt::format("asked for 1 s it says that the pictures end at {} s", early.seconds);
  });
}

Outcome pure(Context& context) {
  return each_format(context, [&](const VideoCase& video) -> std::string {
    const Watched first = decode(context, video);
    Instance fresh(context, context.host());
    for (const Watched& again : {decode(context, video), decode(context, video, fresh.get())})
      if (again.pictures != first.pictures) return "other pictures the second time";
    return trouble(first);
  });
}

Outcome most_pixels(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    video.most_pixels = video_side * video_side;
    if (auto wrong = trouble(decode(context, video)); !wrong.empty()) return "at the limit: " + wrong;
    --video.most_pixels;
    const Watched watched = decode(context, video);
    if (!watched.misuse.empty()) return "one pixel beyond most_pixels, " + watched.misuse;
    return watched.status == FVLM_ERROR_DATA ? "" : "one pixel beyond most_pixels, decode " + status_text(watched);
  });
}

Outcome failing_reads(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    const int reads = decode(context, video).reads;
    for (video.fail_at = 0; video.fail_at < std::min(reads, 20); ++video.fail_at) {
      const Watched watched = decode(context, video);
      if (watched.status != FVLM_ERROR_DEVICE)
        return fmt::format("read {} failed, and decode {}", video.fail_at, status_text(watched));
    }
    return "";
  });
}

Outcome stops(Context& context) {
  return each_format(context, [&](VideoCase video) -> std::string {
    video.stop_at = 1 << 30;
    video.times = {0, 1, 2, 2.5, 2.75};
    const int questions = decode(context, video).questions;
    if (questions < 5) return fmt::format("stop() was asked {} times over 5 pictures", questions);
    for (video.stop_at = 0; video.stop_at < questions; video.stop_at += 1 + questions / 8)
      if (decode(context, video).status == FVLM_OK) return fmt::format("it went on after stop {}", video.stop_at);
    video.stop_at = -1;
    for (video.refuse_at = 0; video.refuse_at < 5; ++video.refuse_at)
      if (const Watched watched = decode(context, video);
          watched.status == FVLM_OK || watched.pictures.size() != static_cast<size_t>(video.refuse_at) + 1)
        return fmt::format("picture {} was refused, {} came, and decode {}", video.refuse_at, watched.pictures.size(),
                           status_text(watched));
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
      for (const Watched& watched : {probe(context, video), decode(context, video)})
        if (!watched.misuse.empty() || (watched.status != FVLM_OK && watched.status != FVLM_ERROR_DATA))
          return fmt::format("case {}, damaged at byte {}: {}", i, at, trouble(watched));
    }
    return "";
  });
}

Outcome nonsense(Context& context) {
  const auto supports = context.table<fvlm_video_v1>().supports;
  for (const VideoCase& video : video_cases()) {
    const char* format = video.format.c_str();
    if (ask(supports, fvlm_video_query{0, format, 100}).score > 0)
      return failed("supports() says yes to struct_size 0");
    if (ask(supports, fvlm_video_query{sizeof(fvlm_video_query), format, 0}).score > 0)
      return failed("supports() says yes to pictures of no pixels");
  }
  if (ask(supports, fvlm_video_query{sizeof(fvlm_video_query), "no such format", 100}).score > 0)
    return failed("supports() says yes to files that end in .no such format");
  return ok();
}

} // namespace

Table video_table() {
  Table table{"video", {}, {}};
  append(table.checks,
         {
             {"probes", "probe() tells the length and size of a file", probes},
             {"shows_what_began", "the picture of a time is the last that began by then", shows_what_began},
             {"alone", "a time alone shows the same picture as among others", alone, "shows_what_began"},
             {"repeated_times", "equal times get a picture each", repeated_times, "shows_what_began"},
             {"no_times", "no times, no pictures", no_times},
             {"behind_the_end", "behind the end the last picture stands in, and the end is told", behind_the_end,
              "shows_what_began"},
             {"pure", "the same file gives the same pictures, whatever was decoded before", pure},
             {"most_pixels", "pictures of more than most_pixels are refused as data", most_pixels},
             {"failing_reads", "a read that fails ends the call as the device's error", failing_reads},
             {"stops", "stop() is asked, and it and a refused picture end the call", stops},
             {"damage", "damaged files end in pictures or as data errors, reading nothing outside the file", damage},
             {"supports_nonsense", "supports() refuses impossible queries", nonsense},
         });
  append(table.checks, generic_host_checks());
  return table;
}

} // namespace fvlm::check
