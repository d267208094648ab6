// libpng's errors, kept for the caller: nothing is printed, nothing exits. A C++ exception must not cross libpng's
// frames, so an error leaves jump.run().
#pragma once
#include "data/media/jump.h"

#include <array>
#include <cstring>
#include <png.h>

namespace fvlm {

struct PngErrors {
  Jump jump;
  std::array<char, 160> text{}; // what was wrong

  // For png_create_*_struct, with the PngErrors as error_ptr.
  [[noreturn]] static void raise(png_structp png, png_const_charp message) {
    auto* errors = static_cast<PngErrors*>(png_get_error_ptr(png));
    std::strncpy(errors->text.data(), message, errors->text.size() - 1);
    errors->jump.leave();
  }
  static void ignore(png_structp, png_const_charp) {}
};

} // namespace fvlm
