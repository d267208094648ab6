// A temporary folder, which is removed by the destructor.
#pragma once
#include <filesystem>

namespace fvlm {

class ScratchFolder {
 public:
  ScratchFolder(); // throws Error(output)
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::filesystem::path& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

} // namespace fvlm
