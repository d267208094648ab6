// video-ffmpeg: probe and decode over Container and Pictures.
#include "pictures.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using sdk::Failure, sdk::Support;

// FFmpeg's own structures of one file: an index of so many bytes holds hours of video.
constexpr size_t largest_allocation = size_t{256} << 20;

class Ffmpeg : public sdk::Video {
 public:
  Ffmpeg() {
    av_log_set_callback([](void*, int, const char*, va_list) {});
    av_max_alloc(largest_allocation);
  }

  static Support supports(const Query& query) {
    if (!query.format) return sdk::refuse("format is NULL");
    if (query.most_pixels < 1) return sdk::refuse("most_pixels is %lld", static_cast<long long>(query.most_pixels));
    if (!demuxer_of(query.format)) return sdk::refuse("files that end in .%.32s", query.format);
    return sdk::accept(200, "FFmpeg, libavcodec %u", avcodec_version() >> 16);
  }

  void probe(const Query& query, const Probe& arguments) {
    Container container(query, *arguments.file, false);
    const AVCodecParameters& parameters = *container.stream().codecpar;
    const bool sideways = container.quarter_turns() % 2 == 1;
    *arguments.seconds = container.seconds();
    *arguments.width = sideways ? parameters.height : parameters.width;
    *arguments.height = sideways ? parameters.width : parameters.height;
  }

  void decode(const Query& query, const Decode& arguments) {
    Container container(query, *arguments.file, true);
    Pictures pictures(container, query.most_pixels);
    Upright upright(container.quarter_turns());
    if (!pictures.next()) throw Failure(FVLM_ERROR_DATA, "no picture");
    container.set_first(pictures.stamp());
    for (int64_t i = 0; i < arguments.time_count; ++i) {
      pictures.show(container.stamp(arguments.times[i]));
      fvlm_video_picture picture = upright.convert(pictures.shown());
      picture.index = i;
      if (arguments.picture(arguments.context, &picture)) throw Failure(FVLM_ERROR_ARGUMENT, "stopped");
    }
    const double last = arguments.time_count > 0 ? arguments.times[arguments.time_count - 1] : 0;
    *arguments.seconds = pictures.at_end() ? std::min(last, container.time(pictures.end())) : last;
  }
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("video-ffmpeg", "1.0.0", fvlm::plugins::Ffmpeg)
