// What the tests of video share: a file in memory, and the decoder of plugins/video-ffmpeg.
#pragma once
#include "base/error.h"
#include "data/media/video.h"
#include "plugin/host.h"

#include <fvlm/fvlm.h>

#include <cstring>
#include <dlfcn.h>
#include <stdexcept>
#include <string>
#include <utility>

namespace media_test {

class Bytes : public fvlm::RandomAccess {
 public:
  explicit Bytes(std::string bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    if (reads++ == fail_at) throw fvlm::Error(fvlm::ErrorKind::device, "the disk is gone");
    if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  }
  mutable int reads = 0;
  int fail_at = -1; // the read that throws

 private:
  std::string bytes_;
};

#ifdef FVLM_TEST_LIBRARY // the plugin
inline fvlm::VideoDecoder ffmpeg_decoder(const fvlm::VideoLimits& limits = {}) {
  static const fvlm_video_v1* const table = [] {
    void* library = dlopen(FVLM_TEST_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) throw std::runtime_error(dlerror());
    const auto entry = reinterpret_cast<fvlm_plugin_entry_function>(dlsym(library, FVLM_PLUGIN_ENTRY));
    return static_cast<const fvlm_video_v1*>(entry(fvlm::host_for("video-ffmpeg"))->table(FVLM_VIDEO_KIND));
  }();
  return {"video-ffmpeg", *table, fvlm::host_for("video-ffmpeg"), limits};
}
#endif

} // namespace media_test
