#include "model/weights/safetensors_writer.h"

#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace fvlm {
namespace {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump();
}

std::string header_of(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  auto separate = [&] {
    if (text.size() > 1 && text.back() != '{') text += ',';
  };
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      separate();
      text += json_text(key) + ':' + json_text(value);
    }
    text += '}';
  }
  uint64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    separate();
    uint64_t end = offset + tensor.byte_size();
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(tensor.name),
                        name_of(tensor.dtype), fmt::join(tensor.shape, ","), offset, end);
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' '); // the data begins aligned
  return text;
}

} // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : order_(std::move(tensors)), file_(std::move(path)) {
  std::ranges::sort(order_, [](const TensorInfo& a, const TensorInfo& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  std::string header = header_of(order_, metadata);
  uint64_t length = header.size();
  file_.write(std::as_bytes(std::span(&length, 1)));
  file_.write(header);
  if (!order_.empty()) missing_ = order_[0].byte_size();
  next_tensor();
}

// Goes on to the next tensor that wants bytes.
void SafetensorsWriter::next_tensor() {
  while (missing_ == 0 && checksums_.size() < order_.size()) {
    checksums_.push_back(hash_.value());
    hash_ = Xxh64();
    if (checksums_.size() < order_.size()) missing_ = order_[checksums_.size()].byte_size();
  }
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > missing_)
    throw Error(ErrorKind::internal, "{} bytes too many for {}", bytes.size() - missing_,
                checksums_.size() < order_.size() ? shown(order_[checksums_.size()].name) : "the file");
  if (bytes.empty()) return;
  file_.write(bytes);
  hash_.update(bytes);
  missing_ -= bytes.size();
  next_tensor();
}

std::vector<uint64_t> SafetensorsWriter::commit() {
  if (checksums_.size() < order_.size())
    throw Error(ErrorKind::internal, "tensor {} still lacks {} bytes", shown(order_[checksums_.size()].name), missing_);
  file_.commit();
  return checksums_;
}

} // namespace fvlm
