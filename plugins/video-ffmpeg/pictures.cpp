#include "pictures.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fvlm::plugins {

using sdk::Failure;

Pictures::Pictures(Container& container, int64_t most_pixels)
    : container_(container), most_pixels_(most_pixels), packet_(required(av_packet_alloc())),
      shown_(required(av_frame_alloc())), coming_(required(av_frame_alloc())) {
  const AVCodecParameters& parameters = *container.stream().codecpar;
  const AVCodec* decoder = avcodec_find_decoder(parameters.codec_id);
  if (!decoder)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "this FFmpeg has no decoder for %s", avcodec_get_name(parameters.codec_id));
  codec_.reset(required(avcodec_alloc_context3(decoder)));
  checked("the stream's parameters", avcodec_parameters_to_context(codec_.get(), &parameters));
  codec_->pkt_timebase = container.stream().time_base;
  codec_->thread_count = 1;
  // The stream may say otherwise than the container. Rows are rounded up before they are compared.
  codec_->max_pixels = most_pixels + most_pixels / 4 + (1 << 16);
  checked("opening the decoder", avcodec_open2(codec_.get(), decoder, nullptr));
}

bool Pictures::next() {
  AVFrame& frame = *coming_;
  while (more_) {
    container_.go_on();
    av_frame_unref(&frame);
    const int code = avcodec_receive_frame(codec_.get(), &frame);
    if (code == AVERROR(EAGAIN)) {
      draining_ = draining_ || !container_.read(*packet_);
      checked("decoding", avcodec_send_packet(codec_.get(), draining_ ? nullptr : packet_.get()));
      continue;
    }
    more_ = code != AVERROR_EOF;
    if (!more_) break;
    checked("decoding", code);
    require_decent_size(frame.width, frame.height, most_pixels_);
    if (frame.best_effort_timestamp == AV_NOPTS_VALUE) frame.best_effort_timestamp = end_;
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 2, 100)
    const int64_t duration = frame.duration;
#else
    const int64_t duration = frame.pkt_duration;
#endif
    end_ = frame.best_effort_timestamp + std::max<int64_t>(duration, 0);
    break;
  }
  return more_;
}

void Pictures::show(int64_t stamp) {
  if (more_ && this->stamp() <= stamp) skip(stamp);
  while (more_ && this->stamp() <= stamp) {
    std::swap(shown_, coming_);
    next();
  }
  // Before the first one there is none: the first stands in.
  if (!shown_->data[0]) checked("a picture", av_frame_ref(shown_.get(), coming_.get()));
}

// Leaves out pictures that no later one is made from, where a key picture lies between here and there. Keys are found
// by when they are decoded; one that is shown too late is given up for the one before it.
void Pictures::skip(int64_t stamp) {
  auto key = container_.key_before(stamp);
  if (!key || *key <= this->stamp()) return;
  while (key && container_.go_to_key(*key)) {
    avcodec_flush_buffers(codec_.get());
    draining_ = false;
    more_ = true;
    if (!next() || this->stamp() <= stamp) return;
    key = container_.key_before(*key - 1);
  }
}

fvlm_video_picture Upright::convert(const AVFrame& frame) {
  const int width = frame.width, height = frame.height;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  scaler_ = sws_getCachedContext(scaler_, width, height, format, width, height, AV_PIX_FMT_RGB24,
                                 SWS_BILINEAR | SWS_ACCURATE_RND, nullptr, nullptr, nullptr);
  if (!scaler_) throw Failure(FVLM_ERROR_DATA, "pictures of %d x %d in pixel format %d", width, height, frame.format);
  if (frame.colorspace != AVCOL_SPC_UNSPECIFIED && frame.colorspace != AVCOL_SPC_RGB) {
    const int* matrix = sws_getCoefficients(frame.colorspace);
    sws_setColorspaceDetails(scaler_, matrix, frame.color_range == AVCOL_RANGE_JPEG, matrix, 1, 0, 1 << 16, 1 << 16);
  }
  // libswscale writes whole vectors: rows are longer than they need be.
  const int stride = (width * 3 + 63) / 64 * 64;
  flat_.resize(static_cast<size_t>(stride) * static_cast<size_t>(height) + 64);
  uint8_t* const planes[4] = {flat_.data()};
  const int strides[4] = {stride};
  checked("converting a picture", sws_scale(scaler_, frame.data, frame.linesize, 0, height, planes, strides));

  fvlm_video_picture picture{};
  picture.struct_size = sizeof picture;
  picture.width = width;
  picture.height = height;
  picture.stride = stride;
  picture.rgb = flat_.data();
  if (quarter_turns_ == 0) return picture;

  const bool sideways = quarter_turns_ % 2 == 1;
  picture.width = sideways ? height : width;
  picture.height = sideways ? width : height;
  picture.stride = picture.width * 3;
  turned_.resize(static_cast<size_t>(picture.stride * picture.height));
  uint8_t* out = turned_.data();
  for (int64_t y = 0; y < picture.height; ++y)
    for (int64_t x = 0; x < picture.width; ++x, out += 3) {
      const int64_t from_x = quarter_turns_ == 1 ? y : quarter_turns_ == 2 ? width - 1 - x : width - 1 - y;
      const int64_t from_y = quarter_turns_ == 1 ? height - 1 - x : quarter_turns_ == 2 ? height - 1 - y : x;
      std::memcpy(out, flat_.data() + from_y * stride + from_x * 3, 3);
    }
  picture.rgb = turned_.data();
  return picture;
}

} // namespace fvlm::plugins
