// libjpeg's errors, kept for the caller: nothing is printed, nothing exits. A C++ exception must not cross libjpeg's
// frames, so an error leaves jump.run().
#pragma once
#include "data/media/jump.h"

#include <array>
#include <cstdio> // jpeglib.h wants FILE and size_t
#include <jpeglib.h>

namespace fvlm {

struct JpegErrors {
  jpeg_error_mgr base{}; // first: libjpeg's pointer to it is a pointer to this
  Jump jump;
  std::array<char, JMSG_LENGTH_MAX> text{}; // what was wrong; of a warning too

  jpeg_error_mgr* manager() {
    jpeg_std_error(&base);
    base.error_exit = [](j_common_ptr library) {
      auto* errors = reinterpret_cast<JpegErrors*>(library->err);
      library->err->format_message(library, errors->text.data());
      errors->jump.leave();
    };
    base.output_message = [](j_common_ptr) {};
    // Level -1 is a warning: damaged data that libjpeg would fill with grey.
    base.emit_message = [](j_common_ptr library, int level) {
      if (level < 0 && library->err->num_warnings++ == 0)
        library->err->format_message(library, reinterpret_cast<JpegErrors*>(library->err)->text.data());
    };
    return &base;
  }
};

} // namespace fvlm
