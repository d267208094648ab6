// An image's bytes: decoded at its size, for a small one, and with its alpha, then resized. Seeds: any JPEG and PNG
// files.
#include "base/error.h"
#include "data/media/decode_image.h"
#include "data/media/resize.h"

#include <array>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  for (const fvlm::DecodeOptions& options : {fvlm::DecodeOptions{0, 0, 1 << 20}, fvlm::DecodeOptions{8, 8, 1 << 20},
                                             fvlm::DecodeOptions{0, 0, 1 << 20, true}}) {
    try {
      const fvlm::Image image = fvlm::decode_image(file, options);
      std::array<uint8_t, 8 * 8 * 3> small{};
      fvlm::resize(image, 8, 8, small);
    } catch (const fvlm::Error& error) {
      if (error.kind() != fvlm::ErrorKind::data) throw;
    }
  }
  return 0;
}
