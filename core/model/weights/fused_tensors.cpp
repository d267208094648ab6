#include "model/weights/fused_tensors.h"

#include "base/error.h"
#include "base/text.h"

#include <algorithm>
#include <optional>

namespace fvlm {
namespace {

using Fused = WholeModelFamily::Fused;

// What the parts of a tensor of this name are called; empty: it is not fused.
std::vector<std::string> parts_of(const std::string& name, const std::vector<Fused>& fused) {
  for (const Fused& each : fused) {
    const size_t at = name.find(each.in_file);
    if (at == name.npos) continue;
    std::vector<std::string> parts;
    for (const std::string& part : each.parts) {
      parts.push_back(name);
      parts.back().replace(at, each.in_file.size(), part);
    }
    return parts;
  }
  return {};
}

// The parts' rows below each other; none where they are not of one type and width.
std::optional<TensorInfo> joined(const std::string& name, const std::vector<const TensorView*>& parts) {
  TensorInfo out = *parts.front();
  out.name = name;
  if (out.shape.empty()) return std::nullopt;
  out.shape.front() = 0;
  for (const TensorView* part : parts) {
    const bool fits = part->dtype == out.dtype && part->shape.size() == out.shape.size() && !part->reader &&
                      std::ranges::equal(std::span(part->shape).subspan(1), std::span(out.shape).subspan(1));
    if (!fits) return std::nullopt;
    out.shape.front() += part->shape.front();
  }
  return out;
}

} // namespace

Safetensors with_divided(const Safetensors& file, const std::vector<Fused>& fused) {
  std::vector<TensorView> tensors;
  for (const TensorView& tensor : file.tensors()) {
    const std::vector<std::string> parts = parts_of(tensor.name, fused);
    if (parts.empty()) {
      tensors.push_back(tensor);
      continue;
    }
    const auto count = static_cast<int64_t>(parts.size());
    if (tensor.reader || tensor.shape.empty() || tensor.shape.front() % count != 0)
      throw Error(ErrorKind::data, "tensor {} has the shape {}{}, and its rows are those of {} tensors",
                  shown(tensor.name), shape_text(tensor.shape), tensor.reader ? " and is quantized" : "", count)
          .at(file.path().string())
          .advise("take the folder as it was published, with plain weights");
    const size_t bytes = tensor.data.size() / parts.size();
    for (size_t i = 0; i < parts.size(); ++i) {
      TensorView& part = tensors.emplace_back(tensor);
      part.name = parts[i];
      part.shape.front() /= count;
      part.data = tensor.data.subspan(i * bytes, bytes);
    }
  }
  return file.view(std::move(tensors));
}

nlohmann::json fused_names(const Safetensors& file, const std::vector<Fused>& fused) {
  nlohmann::json names = nlohmann::json::array();
  for (const TensorView& tensor : file.tensors())
    if (!parts_of(tensor.name, fused).empty()) names.push_back(tensor.name);
  return names;
}

void join(WholeModelForm& form, const nlohmann::json& names, const std::vector<Fused>& fused,
          const std::filesystem::path& where) {
  for (const nlohmann::json& written : names) {
    const std::string name = written.is_string() ? written.get<std::string>() : std::string();
    const std::vector<std::string> part_names = parts_of(name, fused);
    if (part_names.empty())
      throw Error(ErrorKind::data, "{} is no tensor that has others as its rows", written.dump())
          .at(where.string())
          .advise("the file was changed or damaged: import the model anew");
    std::vector<const TensorView*> parts;
    for (const std::string& part : part_names)
      if (const auto found = form.tensors.find(part); found != form.tensors.end()) parts.push_back(found->second);
    const auto info = parts.size() == part_names.size() ? joined(name, parts) : std::nullopt;
    if (!info) continue;
    auto& made = *form.joined.emplace_back(std::make_unique<WholeModelForm::Joined>());
    static_cast<TensorInfo&>(made.view) = *info;
    for (const TensorView* part : parts) made.bytes.insert(made.bytes.end(), part->data.begin(), part->data.end());
    made.view.data = made.bytes;
    for (const std::string& part : part_names) form.tensors.erase(part);
    form.tensors.emplace(name, &made.view);
  }
}

} // namespace fvlm
