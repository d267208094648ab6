#include "ops/out_of_memory.h"

#include "base/error.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

namespace fvlm::ops {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  // LibTorch's CPU allocator throws a plain Error, and across a plugin's border come words alone.
  const auto* of_plugin = dynamic_cast<const Error*>(&error);
  if (!dynamic_cast<const c10::Error*>(&error) && !(of_plugin && of_plugin->kind() == ErrorKind::plugin)) return false;
  const std::string_view text = error.what();
  return text.find("can't allocate memory") != std::string_view::npos ||
         text.find("out of memory") != std::string_view::npos || text.find("bad_alloc") != std::string_view::npos;
}

} // namespace fvlm::ops
