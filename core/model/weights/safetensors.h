// Reads safetensors: one file, or the shards that an index names. Mapped, not copied, and checked whole when it is
// opened.
#pragma once
#include "model/weights/tensor.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fvlm {

// A handle: copies share the mapping, and views stay good while one copy lives.
class Safetensors {
 public:
  // `path`: a .safetensors file, a .safetensors.index.json, or a folder that holds model.safetensors or
  // model.safetensors.index.json. Throws Error(data) unless all of it is sound; allocates in proportion to the header.
  static Safetensors open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  const std::vector<TensorView>& tensors() const&; // in file order
  const TensorView* find(std::string_view name) const&;
  const TensorView& at(std::string_view name) const&;        // throws Error(data) with the nearest name
  const std::vector<TensorView>& tensors() const&& = delete; // views of a temporary would be of nothing
  const TensorView* find(std::string_view name) const&& = delete;
  const TensorView& at(std::string_view name) const&& = delete;
  const std::map<std::string, std::string>& metadata() const;
  uint64_t byte_size() const; // of all tensors

  // These tensors in place of its own, such as some of its own under other names, in the same mapping.
  Safetensors view(std::vector<TensorView> tensors) const;

  // Lets go of the memory behind a tensor of this file, for whoever has copied it.
  void drop(const TensorView& tensor) const;

 private:
  struct Content;
  explicit Safetensors(std::shared_ptr<const Content> content) : content_(std::move(content)) {}
  std::shared_ptr<const Content> content_;
};

} // namespace fvlm
