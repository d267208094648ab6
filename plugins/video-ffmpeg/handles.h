// handles.h: owning pointers to FFmpeg's objects, and its error codes as exceptions.
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
Pointer* check_allocated(Pointer* pointer) {
  if (!pointer) throw sdk::Failure(FVLM_ERROR_MEMORY, "out of memory");
  return pointer;
}

[[noreturn]] void throw_error(const char* action, int code);

// Throws FVLM_ERROR_DATA for negative codes.
inline int check(const char* action, int code) {
  if (code < 0) throw_error(action, code);
  return code;
}

} // namespace fvlm::plugins
