#include "check/video.h"

#include "check/families.h"
#include "check/workbench.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstring>
#include <thread>

namespace fvlm::check {
namespace {

constexpr unsigned char mp4_sample[] = {
// by FFmpeg's MPEG-4 encoder, a key picture every four
#include "check/video_sample.inc"
};

struct Colour {
  int y, u, v;
};

Colour colour_at(const VideoPattern& pattern, int frame, int64_t x, int64_t y) {
  if (pattern.seed == 0) return {static_cast<int>(std::lround(16 + (20 + 16 * frame) * 219.0 / 255)), 128, 128};
  uint64_t hash = pattern.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(frame) * 0xC2B2AE3D27D4EB4Fu +
                  static_cast<uint64_t>(x / 4) * 0x165667B19E3779F9u +
                  static_cast<uint64_t>(y / 4) * 0x27D4EB2F165667C5u;
  hash = (hash ^ (hash >> 31)) * 0xD6E8FEB86659FD93u;
  hash ^= hash >> 32;
  return {hash & 1 ? 180 : 60, hash & 2 ? 166 : 90, hash & 4 ? 166 : 90};
}

std::string y4m_file(const VideoPattern& pattern) {
  std::string bytes =
      fmt::format("YUV4MPEG2 W{} H{} F{}:{} Ip A1:1 C444\n", pattern.width, pattern.height, pattern.rate, pattern.per);
  for (int n = 0; n < pattern.frames; ++n) {
    bytes += "FRAME\n";
    for (int Colour::*plane : {&Colour::y, &Colour::u, &Colour::v})
      for (int64_t y = 0; y < pattern.height; ++y)
        for (int64_t x = 0; x < pattern.width; ++x) bytes += static_cast<char>(colour_at(pattern, n, x, y).*plane);
  }
  return bytes;
}

// The file callbacks that a plugin is given, and a record of how it used them.
class TestVideoFile {
 public:
  explicit TestVideoFile(const VideoCase& video, TestHost* host = nullptr) : video_(video), host_(host) {
    file_ = {sizeof file_, video.bytes.size(), this, read, stop};
  }
  TestVideoFile(const TestVideoFile&) = delete;
  TestVideoFile& operator=(const TestVideoFile&) = delete;

  const fvlm_video_file* file() const { return &file_; }
  VideoResult result;

  static int32_t take(void* self, const fvlm_video_picture* picture) {
    auto& file_source = *static_cast<TestVideoFile*>(self);
    std::vector<DecodedFrame>& pictures = file_source.result.pictures;
    if (!file_source.on_own_thread())
      return file_source.record_misuse("a picture came from another thread than the calling one");
    file_source.result.after_stop += file_source.stopped_;
    if (picture->index == 0 && file_source.shown_ == file_source.video_.times.size())
      file_source.shown_ = 0; // decoded again
    const auto expected = static_cast<int64_t>(file_source.shown_);
    const bool sensible = picture->struct_size >= sizeof *picture && picture->rgb && picture->width > 0 &&
                          picture->height > 0 && picture->stride >= 3 * picture->width &&
                          picture->height <= file_source.video_.most_pixels / picture->width;
    if (!sensible || picture->index != expected ||
        picture->index >= static_cast<int64_t>(file_source.video_.times.size()))
      return file_source.record_misuse(fmt::format("picture {} came with index {}, {} x {} pixels, rows of {} bytes",
                                                   expected, picture->index, picture->width, picture->height,
                                                   picture->stride));
    // In the memory of the pictures before them: a thousand calls take no more than one.
    if (file_source.host_) file_source.host_->run_between(picture->index);
    pictures.resize(std::max(pictures.size(), ++file_source.shown_));
    DecodedFrame& shown = pictures[file_source.shown_ - 1];
    shown.width = picture->width;
    shown.height = picture->height;
    shown.rgb.resize(static_cast<size_t>(3 * picture->width * picture->height));
    for (int64_t row = 0; row < picture->height; ++row)
      std::copy_n(picture->rgb + row * picture->stride, 3 * picture->width,
                  shown.rgb.begin() + row * 3 * picture->width);
    return expected == file_source.video_.refuse_at ? 1 : 0;
  }

 private:
  bool on_own_thread() const { return std::this_thread::get_id() == thread_; }

  int32_t record_misuse(const std::string& text) {
    if (result.misuse.empty()) result.misuse = text;
    return 1;
  }

  static int32_t read(void* self, uint64_t offset, void* into, uint64_t count) {
    auto& file_source = *static_cast<TestVideoFile*>(self);
    const std::string& bytes = file_source.video_.bytes;
    if (!file_source.on_own_thread())
      return file_source.record_misuse("read() was called by another thread than the calling one");
    if (count > bytes.size() || offset > bytes.size() - count)
      return file_source.record_misuse(fmt::format("read {} bytes at {} of a file of {}", count, offset, bytes.size()));
    if (file_source.result.reads++ == file_source.video_.fail_at) return 1;
    std::memcpy(into, bytes.data() + offset, count);
    file_source.result.bytes_read += count;
    return 0;
  }

  static int32_t stop(void* self) {
    auto& file_source = *static_cast<TestVideoFile*>(self);
    if (!file_source.on_own_thread())
      return file_source.record_misuse("stop() was called by another thread than the calling one");
    const bool stops =
        file_source.video_.stop_at >= 0 && file_source.result.cancel_checks++ >= file_source.video_.stop_at;
    file_source.stopped_ = file_source.stopped_ || stops;
    return stops ? 1 : 0;
  }

  const VideoCase& video_;
  TestHost* host_; // its between_pieces() hook runs before each picture; NULL: none
  fvlm_video_file file_{};
  size_t shown_ = 0; // of watched.pictures: those of the last call
  bool stopped_ = false;
  std::thread::id thread_ = std::this_thread::get_id();
};

fvlm_video_query query_of(const VideoCase& video) {
  return {sizeof(fvlm_video_query), video.format.c_str(), video.most_pixels};
}

template <class Function>
VideoResult call_plugin(TestVideoFile& file_source, const Function& function) {
  char text[512] = "";
  fvlm_error error{sizeof error, sizeof text, text};
  file_source.result.status = function(&error);
  file_source.result.error = text;
  return std::move(file_source.result);
}

Run run(Context& context, const VideoCase& video, const Variation& variation) {
  const auto& table = context.table<fvlm_video_v1>();
  TestVideoFile file_source(video, variation.host);
  Workbench bench(context, variation);
  Operand& times = bench.input("times", at::tensor(video.times, at::kDouble), Rows::contiguous);
  Operand& length = bench.output("probe seconds", {1}, at::kDouble);
  Operand& width = bench.output("width", {1}, at::kLong);
  Operand& height = bench.output("height", {1}, at::kLong);
  auto* query = bench.guarded_query(query_of(video));
  fvlm_video_probe probe{};
  probe.file = file_source.file();
  probe.seconds = static_cast<double*>(length.abi()->data);
  probe.width = static_cast<int64_t*>(width.abi()->data);
  probe.height = static_cast<int64_t*>(height.abi()->data);
  auto* probe_arguments = bench.guarded_arguments(probe);
  bench.call("probe", 0,
             [&](const fvlm_call* call) { return table.probe(bench.instance(), query, probe_arguments, call->error); });
  Operand& seconds = bench.output("seconds", {1}, at::kDouble);
  fvlm_video_decode decode{};
  decode.file = file_source.file();
  decode.time_count = static_cast<int64_t>(video.times.size());
  decode.times = static_cast<const double*>(times.abi()->data);
  decode.picture = TestVideoFile::take;
  decode.context = &file_source;
  decode.seconds = static_cast<double*>(seconds.abi()->data);
  auto* decode_arguments = bench.guarded_arguments(decode);
  if (bench.can_continue())
    bench.call("decode", 0, [&](const fvlm_call* call) {
      return table.decode(bench.instance(), query, decode_arguments, call->error);
    });
  Run done = bench.finish();
  for (size_t i = 0; i < file_source.result.pictures.size(); ++i)
    done.outputs.emplace_back(fmt::format("picture {}", i), at::tensor(file_source.result.pictures[i].rgb, at::kByte));
  return done;
}

} // namespace

VideoCase y4m_case(const VideoPattern& pattern) {
  return {.format = "y4m", .bytes = y4m_file(pattern), .pattern = pattern};
}

std::vector<VideoCase> video_cases() {
  return {{.format = "mp4", .bytes = {reinterpret_cast<const char*>(mp4_sample), sizeof mp4_sample}}, y4m_case({})};
}

int DecodedFrame::frame(const VideoPattern& pattern) const {
  if (width != pattern.width || height != pattern.height) return -1;
  double sum = 0;
  for (const uint8_t value : rgb) sum += value;
  const double mean = sum / static_cast<double>(rgb.size());
  for (const uint8_t value : rgb)
    if (std::abs(value - mean) > 5) return -1;
  const double number = (mean - 20) / 16;
  return std::abs(number - std::round(number)) < 0.35 ? static_cast<int>(std::lround(number)) : -1;
}

std::string DecodedFrame::difference(const VideoPattern& pattern, int frame) const {
  if (width != pattern.width || height != pattern.height)
    return fmt::format("{} x {} pixels instead of {} x {}", width, height, pattern.width, pattern.height);
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const Colour colour = colour_at(pattern, frame, x, y);
      const double light = (colour.y - 16) * 255.0 / 219, u = colour.u - 128, v = colour.v - 128;
      const double expected[] = {light + 1.596 * v, light - 0.392 * u - 0.813 * v, light + 2.017 * u};
      const uint8_t* pixel = rgb.data() + 3 * (y * width + x);
      // The standards of HDTV and of computers give the same colours within 28.
      for (int channel = 0; channel < 3; ++channel)
        if (std::abs(pixel[channel] - std::clamp(expected[channel], 0.0, 255.0)) > 36)
          return fmt::format("in row {}, column {} it is red {}, green {}, blue {}, and frame {} is {:.0f}, {:.0f}, "
                             "{:.0f} there",
                             y, x, pixel[0], pixel[1], pixel[2], frame, expected[0], expected[1], expected[2]);
    }
  return "";
}

fvlm_support video_supports(Context& context, const VideoCase& video) {
  return query_support(context.table<fvlm_video_v1>().supports, query_of(video));
}

VideoResult probe(Context& context, const VideoCase& video, fvlm_instance* instance) {
  TestVideoFile file_source(video);
  const fvlm_video_query query = query_of(video);
  const fvlm_video_probe arguments{sizeof arguments, file_source.file(), &file_source.result.seconds,
                                   &file_source.result.width, &file_source.result.height};
  return call_plugin(file_source, [&](fvlm_error* error) {
    return context.table<fvlm_video_v1>().probe(instance ? instance : context.instance(), &query, &arguments, error);
  });
}

VideoResult decode(Context& context, const VideoCase& video, fvlm_instance* instance) {
  TestVideoFile file_source(video);
  const fvlm_video_query query = query_of(video);
  const fvlm_video_decode arguments{
      sizeof arguments,           file_source.file(),  static_cast<int64_t>(video.times.size()),
      video.times.data(),         TestVideoFile::take, &file_source,
      &file_source.result.seconds};
  return call_plugin(file_source, [&](fvlm_error* error) {
    return context.table<fvlm_video_v1>().decode(instance ? instance : context.instance(), &query, &arguments, error);
  });
}

Trial video_trial(const VideoCase& video) {
  Trial trial;
  trial.label = fmt::format("{} file, {} times", video.format, video.times.size());
  trial.supports = [video](Context& context) { return video_supports(context, video); };
  trial.run = [video](Context& context, const Variation& variation) { return run(context, video, variation); };
  trial.expect = [] { return Expectation{}; };
  return trial;
}

std::vector<Trial> video_trials(Context&) {
  std::vector<Trial> trials;
  for (const VideoCase& video : video_cases()) trials.push_back(video_trial(video));
  trials.push_back(video_trial(y4m_case({.width = 37, .height = 21, .seed = 3})));
  return trials;
}

} // namespace fvlm::check
