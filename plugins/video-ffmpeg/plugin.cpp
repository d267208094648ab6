// plugin.cpp: probe and decode, on top of Container and FrameDecoder.
#include "frame_decoder.h"

#include <algorithm>

namespace fvlm::plugins {
namespace {

using sdk::Failure, sdk::Support;

// Upper bound of a single allocation of FFmpeg: an index of this size covers hours of video.
constexpr size_t max_allocation = size_t{256} << 20;

class Ffmpeg : public sdk::Video {
 public:
  Ffmpeg() {
    av_log_set_callback([](void*, int, const char*, va_list) {});
    av_max_alloc(max_allocation);
  }

  static Support supports(const Query& query) {
    if (!query.format) return sdk::refuse("format is NULL");
    if (query.most_pixels < 1) return sdk::refuse("most_pixels is %lld", static_cast<long long>(query.most_pixels));
    if (!find_demuxer(query.format)) return sdk::refuse("file extension .%.32s not supported", query.format);
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
    FrameDecoder decoder(container, query.most_pixels);
    RgbConverter converter(container.quarter_turns());
    if (!decoder.next()) throw Failure(FVLM_ERROR_DATA, "no frame");
    container.set_first_pts(decoder.pts());
    for (int64_t i = 0; i < arguments.time_count; ++i) {
      decoder.advance_to(container.pts(arguments.times[i]));
      fvlm_video_picture picture = converter.convert(decoder.current());
      picture.index = i;
      if (arguments.picture(arguments.context, &picture)) throw Failure(FVLM_ERROR_ARGUMENT, "cancelled");
    }
    const double last = arguments.time_count > 0 ? arguments.times[arguments.time_count - 1] : 0;
    *arguments.seconds = decoder.at_end() ? std::min(last, container.time(decoder.end())) : last;
  }
};

} // namespace
} // namespace fvlm::plugins

FVLM_PLUGIN("video-ffmpeg", "1.0.0", fvlm::plugins::Ffmpeg)
