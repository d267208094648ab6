// frame_decoder.cpp: decoding, seeking to keyframes, conversion and rotation.
#include "frame_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fvlm::plugins {

using sdk::Failure;

FrameDecoder::FrameDecoder(Container& container, int64_t max_pixels)
    : container_(container), max_pixels_(max_pixels), packet_(check_allocated(av_packet_alloc())),
      current_(check_allocated(av_frame_alloc())), next_(check_allocated(av_frame_alloc())) {
  const AVCodecParameters& parameters = *container.stream().codecpar;
  const AVCodec* decoder = avcodec_find_decoder(parameters.codec_id);
  if (!decoder)
    throw Failure(FVLM_ERROR_UNSUPPORTED, "this FFmpeg has no decoder for %s", avcodec_get_name(parameters.codec_id));
  codec_.reset(check_allocated(avcodec_alloc_context3(decoder)));
  check("setting the stream's parameters", avcodec_parameters_to_context(codec_.get(), &parameters));
  codec_->pkt_timebase = container.stream().time_base;
  codec_->thread_count = 1;
  // The stream may declare another size than the container. FFmpeg compares padded rows with this limit.
  codec_->max_pixels = max_pixels + max_pixels / 4 + (1 << 16);
  check("opening the decoder", avcodec_open2(codec_.get(), decoder, nullptr));
}

bool FrameDecoder::next() {
  AVFrame& frame = *next_;
  while (has_next_) {
    container_.check_cancelled();
    av_frame_unref(&frame);
    const int code = avcodec_receive_frame(codec_.get(), &frame);
    if (code == AVERROR(EAGAIN)) {
      draining_ = draining_ || !container_.read(*packet_);
      check("decoding", avcodec_send_packet(codec_.get(), draining_ ? nullptr : packet_.get()));
      continue;
    }
    has_next_ = code != AVERROR_EOF;
    if (!has_next_) break;
    check("decoding", code);
    check_frame_size(frame.width, frame.height, max_pixels_);
    if (frame.best_effort_timestamp == AV_NOPTS_VALUE) frame.best_effort_timestamp = end_;
#if LIBAVUTIL_VERSION_INT >= AV_VERSION_INT(58, 2, 100)
    const int64_t duration = frame.duration;
#else
    const int64_t duration = frame.pkt_duration;
#endif
    end_ = frame.best_effort_timestamp + std::max<int64_t>(duration, 0);
    break;
  }
  return has_next_;
}

void FrameDecoder::advance_to(int64_t pts) {
  if (has_next_ && this->pts() <= pts) skip_to_keyframe(pts);
  while (has_next_ && this->pts() <= pts) {
    std::swap(current_, next_);
    next();
  }
  // Before the first frame there is none: the first one is used.
  if (!current_->data[0]) check("referencing a frame", av_frame_ref(current_.get(), next_.get()));
}

// Seeks to a later keyframe if there is one between the current position and this pts. The index is in decoding order,
// so a keyframe may turn out to be displayed too late; then the previous one is used.
void FrameDecoder::skip_to_keyframe(int64_t pts) {
  auto key = container_.keyframe_before(pts);
  if (!key || *key <= this->pts()) return;
  while (key && container_.seek_to_keyframe(*key)) {
    avcodec_flush_buffers(codec_.get());
    draining_ = false;
    has_next_ = true;
    if (!next() || this->pts() <= pts) return;
    key = container_.keyframe_before(*key - 1);
  }
}

fvlm_video_picture RgbConverter::convert(const AVFrame& frame) {
  const int width = frame.width, height = frame.height;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  scaler_ = sws_getCachedContext(scaler_, width, height, format, width, height, AV_PIX_FMT_RGB24,
                                 SWS_BILINEAR | SWS_ACCURATE_RND, nullptr, nullptr, nullptr);
  if (!scaler_) throw Failure(FVLM_ERROR_DATA, "frames of %d x %d in pixel format %d", width, height, frame.format);
  if (frame.colorspace != AVCOL_SPC_UNSPECIFIED && frame.colorspace != AVCOL_SPC_RGB) {
    const int* matrix = sws_getCoefficients(frame.colorspace);
    sws_setColorspaceDetails(scaler_, matrix, frame.color_range == AVCOL_RANGE_JPEG, matrix, 1, 0, 1 << 16, 1 << 16);
  }
  // libswscale writes whole vectors, so rows are padded.
  const int stride = (width * 3 + 63) / 64 * 64;
  flat_.resize(static_cast<size_t>(stride) * static_cast<size_t>(height) + 64);
  uint8_t* const planes[4] = {flat_.data()};
  const int strides[4] = {stride};
  check("converting a frame", sws_scale(scaler_, frame.data, frame.linesize, 0, height, planes, strides));

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
