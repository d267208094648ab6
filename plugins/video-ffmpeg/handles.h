// FFmpeg's objects with owners, and its errors as failures of a call.
#pragma once
#include <fvlm/fvlm.hpp>

#include <memory>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libswscale/swscale.h>
}

namespace fvlm::plugins {

template <auto free_by_address>
struct FreeByAddress {
  template <class Object>
  void operator()(Object* object) const {
    free_by_address(&object);
  }
};

using Packet = std::unique_ptr<AVPacket, FreeByAddress<av_packet_free>>;
using Frame = std::unique_ptr<AVFrame, FreeByAddress<av_frame_free>>;
using Codec = std::unique_ptr<AVCodecContext, FreeByAddress<avcodec_free_context>>;

template <class Pointer>
Pointer* required(Pointer* made) {
  if (!made) throw sdk::Failure(FVLM_ERROR_MEMORY, "out of memory");
  return made;
}

[[noreturn]] void fail(const char* doing, int code);

// Negative codes are failures: FVLM_ERROR_DATA.
inline int checked(const char* doing, int code) {
  if (code < 0) fail(doing, code);
  return code;
}

} // namespace fvlm::plugins
