#include "base/scratch_folder.h"

#include "base/descriptor.h"

#include <cstdlib>
#include <string>
#include <system_error>

namespace fvlm {

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fvlm-XXXXXX").string();
  if (!mkdtemp(name.data())) fail_to_write(name, "make a temporary folder");
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

} // namespace fvlm
