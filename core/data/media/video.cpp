#include "data/media/video.h"

#include "base/error.h"
#include "base/log.h"
#include "data/media/decoders.h"
#include "data/media/resize.h"
#include "plugin/guard.h"
#include "plugin/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <utility>

namespace fvlm {
namespace {

constexpr double max_missing_seconds = 2; // seconds for which the last frame stands in

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

} // namespace

// One call into the plugin: an instance, the file it reads, and what went wrong in our callbacks, whose exceptions must
// not cross it.
struct VideoDecoder::Call {
  const VideoDecoder& decoder;
  const RandomAccess& file;
  fvlm_instance* instance = nullptr;
  fvlm_video_file abi_file{};
  std::exception_ptr thrown;
  bool timed_out = false;
  double begin = processor_seconds();
  std::optional<std::string> refusal; // the plugin's words on a file that is damaged

  Call(const VideoDecoder& decoder_, const RandomAccess& file_) : decoder(decoder_), file(file_) {
    abi_file = {sizeof abi_file, file.size(), this, read, is_cancelled};
    const fvlm_instance_config config{sizeof config, {FVLM_CPU, 0}, decoder.host_};
    run("create", [&](fvlm_error* error) { return decoder.table_.base.create(&config, &instance, error); });
  }
  ~Call() { decoder.table_.base.destroy(instance); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void run(std::string_view what, const std::function<fvlm_status(fvlm_error*)>& function) {
    ErrorSink sink;
    fvlm_status status = FVLM_OK;
    const auto file_size = [&] { return fmt::format("\n  file: {} bytes", file.size()); };
    guard_call(
        decoder.plugin_, fmt::format("video {}", what), sink,
        [&] {
          status = function(sink.get());
          const bool expected = thrown || timed_out || status == FVLM_ERROR_DATA;
          return expected ? FVLM_OK : status;
        },
        file_size);
    if (thrown) std::rethrow_exception(thrown);
    if (timed_out)
      throw Error(ErrorKind::data, "a video that takes more than {} s of the processor's time for a frame",
                  decoder.limits_.seconds);
    if (status == FVLM_ERROR_DATA) throw Error(ErrorKind::data, "a broken video: {}", sink.text());
  }

  // Runs one of our callbacks for the plugin.
  template <class Work>
  int32_t guarded(Work&& work) noexcept {
    if (thrown) return 1;
    try {
      work();
      return 0;
    } catch (...) {
      thrown = std::current_exception();
      return 1;
    }
  }

  static int32_t read(void* context, uint64_t offset, void* into, uint64_t count) {
    auto& call = *static_cast<Call*>(context);
    return call.guarded([&] {
      if (count > call.abi_file.size || offset > call.abi_file.size - count)
        throw Error(ErrorKind::plugin, "read {} bytes at {} of a file of {}", count, offset, call.abi_file.size)
            .at(call.decoder.plugin_);
      call.file.read(offset, {static_cast<std::byte*>(into), count});
    });
  }

  static int32_t is_cancelled(void* context) {
    auto& call = *static_cast<Call*>(context);
    call.timed_out = call.timed_out || processor_seconds() - call.begin > call.decoder.limits_.seconds;
    return call.timed_out || call.thrown ? 1 : 0;
  }
};

namespace {

// Where the pictures of a call go.
struct FrameSink {
  int64_t most_pixels, width, height;
  std::span<uint8_t> out;
  int64_t received = 0;
  Image image{};

  void take(const fvlm_video_picture& picture) {
    const int64_t frame_bytes = width * height * 3;
    const bool sensible = picture.struct_size >= sizeof picture && picture.index == received && picture.rgb &&
                          picture.width > 0 && picture.height > 0 && picture.height <= most_pixels / picture.width &&
                          picture.stride >= picture.width * 3;
    if (!sensible || (received + 1) * frame_bytes > static_cast<int64_t>(out.size()))
      throw Error(ErrorKind::plugin, "picture {} has index {}, {} x {} pixels, rows of {} bytes", received,
                  picture.index, picture.width, picture.height, picture.stride);
    image.width = picture.width;
    image.height = picture.height;
    const auto row_bytes = static_cast<size_t>(picture.width * 3);
    image.rgb.resize(row_bytes * static_cast<size_t>(picture.height));
    for (int64_t row = 0; row < picture.height; ++row)
      std::memcpy(image.rgb.data() + static_cast<size_t>(row) * row_bytes, picture.rgb + row * picture.stride,
                  row_bytes);
    resize(image, width, height,
           out.subspan(static_cast<size_t>(received * frame_bytes), static_cast<size_t>(frame_bytes)));
    ++received;
  }
};

} // namespace

VideoDecoder::VideoDecoder(std::string plugin, const fvlm_video_v1& table, const fvlm_host* host, VideoLimits limits)
    : plugin_(std::move(plugin)), table_(table), host_(host), limits_(limits) {}

fvlm_video_query VideoDecoder::query(const VideoLimits& limits) {
  return {sizeof(fvlm_video_query), "mp4", limits.most_pixels};
}

VideoInfo VideoDecoder::probe(const RandomAccess& file) const {
  Call call(*this, file);
  VideoInfo info;
  const fvlm_video_query video_query = query(limits_);
  const fvlm_video_probe arguments{sizeof arguments, &call.abi_file, &info.seconds, &info.width, &info.height};
  call.run("probe", [&](fvlm_error* error) { return table_.probe(call.instance, &video_query, &arguments, error); });
  if (!std::isfinite(info.seconds) || info.seconds < 0 || info.width < 1 || info.height < 1)
    throw Error(ErrorKind::data, "a broken video: {} x {} pixels, {} s", info.width, info.height, info.seconds);
  return info;
}

void VideoDecoder::decode(const RandomAccess& file, std::span<const double> times, int64_t width, int64_t height,
                          std::span<uint8_t> out_nhwc) const {
  if (width < 1 || height < 1 || out_nhwc.size() != times.size() * static_cast<size_t>(width * height * 3))
    throw Error(ErrorKind::internal, "decode: {} frames of {} x {} into {} bytes", times.size(), width, height,
                out_nhwc.size());
  if (times.empty()) return;
  if (!std::ranges::is_sorted(times) || !(times.front() >= 0))
    throw Error(ErrorKind::internal, "decode: the times of frames have to ascend from 0 on");
  Call call(*this, file);
  FrameSink frame_sink{limits_.most_pixels, width, height, out_nhwc};
  struct CallbackContext {
    Call& call;
    FrameSink& frame_sink;
  } contexts{call, frame_sink};
  double seconds = 0;
  const fvlm_video_query video_query = query(limits_);
  const fvlm_video_decode arguments{sizeof arguments,
                                    &call.abi_file,
                                    static_cast<int64_t>(times.size()),
                                    times.data(),
                                    [](void* context, const fvlm_video_picture* picture) {
                                      auto& contexts = *static_cast<CallbackContext*>(context);
                                      return contexts.call.guarded([&] {
                                        contexts.frame_sink.take(*picture);
                                        contexts.call.begin = processor_seconds();
                                      });
                                    },
                                    &contexts,
                                    &seconds};
  call.run("decode", [&](fvlm_error* error) { return table_.decode(call.instance, &video_query, &arguments, error); });
  if (frame_sink.received != arguments.time_count)
    throw Error(ErrorKind::plugin, "video decode: {} pictures came for {} times", frame_sink.received, times.size())
        .at(plugin_);
  if (!(times.back() - seconds <= max_missing_seconds))
    throw Error(ErrorKind::data, "a broken video: it ends after {:.2f} s, a frame at {:.2f} s is missing", seconds,
                times.back());
}

std::optional<VideoDecoder> choose_video_decoder(Registry& registry, const std::vector<std::string>& preferences) {
  try {
    const auto choice = select<fvlm_video_v1>(registry, BackendPreference::of(preferences), VideoDecoder::query());
    return VideoDecoder(choice.plugin->name(), *choice.table, choice.plugin->host);
  } catch (const Error& error) {
    // The reference reads none: pictures do without.
    const auto names_nobody = [](const std::string& name) { return name == "auto" || name == "reference"; };
    if (!std::ranges::all_of(preferences, names_nobody)) throw;
    if (const std::string line = fmt::format("mp4 files will not be read: {}", error.what());
        registry.is_first_occurrence(line))
      log_debug("{}", line);
    return {};
  }
}

namespace {

// All of a GIF; empty: the file is none.
std::vector<std::byte> bytes_of_gif(const RandomAccess& file) {
  std::vector<std::byte> bytes(std::min<uint64_t>(file.size(), 6));
  file.read(0, bytes);
  if (!looks_like_gif(bytes)) return {};
  if (file.size() > max_image_file_bytes)
    throw Error(ErrorKind::data, "a GIF of {} bytes, more than {}", file.size(), max_image_file_bytes);
  bytes.resize(file.size());
  file.read(0, bytes);
  return bytes;
}

const VideoDecoder& required(const VideoDecoder* decoder) {
  if (!decoder)
    throw Error(ErrorKind::data, "it needs a plugin that decodes videos, and there is none")
        .advise("`fvlm-engine plugin list` says why");
  return *decoder;
}

} // namespace

VideoInfo probe_video(const VideoDecoder* decoder, const RandomAccess& file) {
  if (const auto gif = bytes_of_gif(file); !gif.empty()) return probe_gif(gif);
  return required(decoder).probe(file);
}

void decode_video(const VideoDecoder* decoder, const RandomAccess& file, std::span<const double> times, int64_t width,
                  int64_t height, std::span<uint8_t> out_nhwc) {
  if (const auto gif = bytes_of_gif(file); !gif.empty()) return decode_gif(gif, times, width, height, out_nhwc);
  required(decoder).decode(file, times, width, height, out_nhwc);
}

std::vector<double> sample_frame_times(double seconds, int64_t most) {
  constexpr double longest = 1e12;
  const double known = std::isfinite(seconds) ? std::clamp(seconds, 1.0, longest) : 1.0;
  const auto count = static_cast<int64_t>(std::ceil(known));
  const int64_t taken = std::clamp<int64_t>(most, 1, count);
  std::vector<double> times(static_cast<size_t>(taken));
  for (int64_t i = 0; i < taken; ++i) {
    const double place =
        taken == 1 ? 0 : static_cast<double>(i) * static_cast<double>(count - 1) / static_cast<double>(taken - 1);
    times[static_cast<size_t>(i)] = std::floor(place + 0.5);
  }
  return times;
}

std::vector<double> sample_evenly(double seconds, double per_second, int64_t most) {
  constexpr double rate = 24, skipped = 1, longest = 1e9;
  const double length = std::isfinite(seconds) ? std::clamp(seconds, 0.0, longest) : 0.0;
  const auto all = std::max<int64_t>(1, std::llround(length * rate));
  const auto due = static_cast<int64_t>(std::nearbyint(std::min(per_second * length, longest)));
  const int64_t taken = std::clamp<int64_t>(due, 1, std::max<int64_t>(most, 1));
  int64_t first = 0, last = all - 1;
  if (length - 2 * skipped > static_cast<double>(most) * per_second) {
    first = static_cast<int64_t>(skipped * rate);
    last = all - first;
  }
  const double step = taken == 1 ? 0 : static_cast<double>(last - first) / static_cast<double>(taken - 1);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < taken; ++i) {
    const auto frame = static_cast<int64_t>(static_cast<double>(i) * step + static_cast<double>(first));
    if (frames.empty() || frame > frames.back()) frames.push_back(frame);
  }
  std::vector<double> times;
  for (const int64_t frame : frames) times.push_back(static_cast<double>(frame) / rate);
  return times;
}

} // namespace fvlm
