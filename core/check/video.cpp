#include "check/video.h"

#include "check/families.h"
#include "check/workbench.h"

#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstring>

namespace fvlm::check {
namespace {

constexpr unsigned char mp4_sample[] = {
// by FFmpeg's MPEG-4 encoder, a key picture every four
#include "check/video_sample.inc"
};

std::string y4m_sample() {
  std::string bytes = "YUV4MPEG2 W32 H32 F4:1 Ip A1:1 C444\n";
  for (int n = 0; n < 12; ++n) {
    const auto luminance = static_cast<char>(std::lround(16 + (20 + 16 * n) * 219.0 / 255));
    bytes += "FRAME\n" + std::string(video_side * video_side, luminance) +
             std::string(2 * video_side * video_side, static_cast<char>(128));
  }
  return bytes;
}

// The file that a plugin is lent, and what it does with it.
class Lent {
 public:
  explicit Lent(const VideoCase& video) : video_(video) {
    file_ = {sizeof file_, video.bytes.size(), this, read, stop};
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  const fvlm_video_file* file() const { return &file_; }
  Watched watched;

  static int32_t take(void* self, const fvlm_video_picture* picture) {
    auto& lent = *static_cast<Lent*>(self);
    std::vector<Shown>& pictures = lent.watched.pictures;
    if (picture->index == 0 && lent.seen_ == lent.video_.times.size()) lent.seen_ = 0; // decoded again
    const auto expected = static_cast<int64_t>(lent.seen_);
    const bool sensible = picture->struct_size >= sizeof *picture && picture->rgb && picture->width > 0 &&
                          picture->height > 0 && picture->stride >= 3 * picture->width &&
                          picture->height <= lent.video_.most_pixels / picture->width;
    if (!sensible || picture->index != expected || picture->index >= static_cast<int64_t>(lent.video_.times.size()))
      return lent.blame(fmt::format("picture {} came with index {}, {} x {} pixels, rows of {} bytes", expected,
                                    picture->index, picture->width, picture->height, picture->stride));
    // In the memory of the pictures before them: a thousand calls take no more than one.
    pictures.resize(std::max(pictures.size(), ++lent.seen_));
    Shown& shown = pictures[lent.seen_ - 1];
    shown.width = picture->width;
    shown.height = picture->height;
    shown.rgb.resize(static_cast<size_t>(3 * picture->width * picture->height));
    for (int64_t row = 0; row < picture->height; ++row)
      std::copy_n(picture->rgb + row * picture->stride, 3 * picture->width,
                  shown.rgb.begin() + row * 3 * picture->width);
    return expected == lent.video_.refuse_at ? 1 : 0;
  }

 private:
  int32_t blame(const std::string& text) {
    if (watched.misuse.empty()) watched.misuse = text;
    return 1;
  }

  static int32_t read(void* self, uint64_t offset, void* into, uint64_t count) {
    auto& lent = *static_cast<Lent*>(self);
    const std::string& bytes = lent.video_.bytes;
    if (count > bytes.size() || offset > bytes.size() - count)
      return lent.blame(fmt::format("read {} bytes at {} of a file of {}", count, offset, bytes.size()));
    if (lent.watched.reads++ == lent.video_.fail_at) return 1;
    std::memcpy(into, bytes.data() + offset, count);
    return 0;
  }

  static int32_t stop(void* self) {
    auto& lent = *static_cast<Lent*>(self);
    return lent.video_.stop_at >= 0 && lent.watched.questions++ >= lent.video_.stop_at ? 1 : 0;
  }

  const VideoCase& video_;
  fvlm_video_file file_{};
  size_t seen_ = 0; // of watched.pictures: those of the last call
};

fvlm_video_query query_of(const VideoCase& video) {
  return {sizeof(fvlm_video_query), video.format.c_str(), video.most_pixels};
}

template <class Function>
Watched watch(Lent& lent, const Function& function) {
  char text[512] = "";
  fvlm_error error{sizeof error, sizeof text, text};
  lent.watched.status = function(&error);
  lent.watched.error = text;
  return std::move(lent.watched);
}

Run run(Context& context, const VideoCase& video, const Variation& variation) {
  const auto& table = context.table<fvlm_video_v1>();
  Lent lent(video);
  Workbench bench(context, variation);
  Operand& times = bench.input("times", at::tensor(video.times, at::kDouble), Rows::contiguous);
  Operand& length = bench.output("probe seconds", {1}, at::kDouble);
  Operand& width = bench.output("width", {1}, at::kLong);
  Operand& height = bench.output("height", {1}, at::kLong);
  Operand& seconds = bench.output("seconds", {1}, at::kDouble);
  auto* query = bench.lend_query(query_of(video));
  fvlm_video_probe probe{};
  probe.file = lent.file();
  probe.seconds = static_cast<double*>(length.abi()->data);
  probe.width = static_cast<int64_t*>(width.abi()->data);
  probe.height = static_cast<int64_t*>(height.abi()->data);
  auto* asked = bench.lend_arguments(probe);
  bench.call("probe", 0, {&length, &width, &height},
             [&](const fvlm_call* call) { return table.probe(bench.instance(), query, asked, call->error); });
  fvlm_video_decode decode{};
  decode.file = lent.file();
  decode.time_count = static_cast<int64_t>(video.times.size());
  decode.times = static_cast<const double*>(times.abi()->data);
  decode.picture = Lent::take;
  decode.context = &lent;
  decode.seconds = static_cast<double*>(seconds.abi()->data);
  auto* wanted = bench.lend_arguments(decode);
  if (bench.going())
    bench.call("decode", 0, {&seconds},
               [&](const fvlm_call* call) { return table.decode(bench.instance(), query, wanted, call->error); });
  Run done = bench.finish();
  for (size_t i = 0; i < lent.watched.pictures.size(); ++i)
    done.outputs.emplace_back(fmt::format("picture {}", i), at::tensor(lent.watched.pictures[i].rgb, at::kByte));
  return done;
}

} // namespace

std::vector<VideoCase> video_cases() {
  return {{.format = "mp4", .bytes = {reinterpret_cast<const char*>(mp4_sample), sizeof mp4_sample}},
          {.format = "y4m", .bytes = y4m_sample()}};
}

int Shown::frame() const {
  if (width != video_side || height != video_side) return -1;
  double sum = 0;
  for (const uint8_t value : rgb) sum += value;
  const double mean = sum / static_cast<double>(rgb.size());
  for (const uint8_t value : rgb)
    if (std::abs(value - mean) > 5) return -1;
  const double number = (mean - 20) / 16;
  return std::abs(number - std::round(number)) < 0.35 ? static_cast<int>(std::lround(number)) : -1;
}

fvlm_support video_supports(Context& context, const VideoCase& video) {
  return ask(context.table<fvlm_video_v1>().supports, query_of(video));
}

Watched probe(Context& context, const VideoCase& video) {
  Lent lent(video);
  const fvlm_video_query query = query_of(video);
  const fvlm_video_probe arguments{sizeof arguments, lent.file(), &lent.watched.seconds, &lent.watched.width,
                                   &lent.watched.height};
  return watch(lent, [&](fvlm_error* error) {
    return context.table<fvlm_video_v1>().probe(context.instance(), &query, &arguments, error);
  });
}

Watched decode(Context& context, const VideoCase& video, fvlm_instance* instance) {
  Lent lent(video);
  const fvlm_video_query query = query_of(video);
  const fvlm_video_decode arguments{sizeof arguments,     lent.file(), static_cast<int64_t>(video.times.size()),
                                    video.times.data(),   Lent::take,  &lent,
                                    &lent.watched.seconds};
  return watch(lent, [&](fvlm_error* error) {
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
  return trials;
}

} // namespace fvlm::check
