#include "model/weights/stacked_experts.h"

#include "base/error.h"
#include "base/text.h"
#include "model/weights/weight_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace fvlm {
namespace {

constexpr std::string_view gate_up_end = ".experts.gate_up_proj", down_end = ".experts.down_proj";

// `matrix` [rows, cols] where `from` is [cols, rows] in a stack of wider rows, of which it is some columns.
void transpose(std::span<const std::byte> from, int64_t stride, std::span<std::byte> matrix, int64_t rows, int64_t cols,
               size_t size) {
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      std::memcpy(matrix.data() + static_cast<size_t>(row * cols + col) * size,
                  from.data() + static_cast<size_t>(col * stride + row) * size, size);
}

// Some columns of a matrix, as rows.
class Columns final : public WeightReader {
 public:
  Columns(const TensorView& stack, std::span<const std::byte> matrix, int64_t first, int64_t rows)
      : WeightReader(rows, stack.shape[1]), type_(stack.dtype), matrix_(matrix), stride_(stack.shape[2]),
        first_(first) {}
  DType type() const override { return type_; }
  void read(int64_t first, std::span<std::byte> rows) const override {
    const size_t size = size_of(type_);
    const int64_t count = std::ssize(rows) / (cols() * static_cast<int64_t>(size));
    transpose(matrix_.subspan(static_cast<size_t>(first_ + first) * size), stride_, rows, count, cols(), size);
  }
  std::span<const std::byte> stored() const override { return matrix_; }

 private:
  DType type_;
  std::span<const std::byte> matrix_;
  int64_t stride_, first_;
};

// Matrices of one width and type, one below the other.
using Matrices = std::vector<const TensorView*>;

class Stacked final : public WeightReader {
 public:
  explicit Stacked(Matrices parts)
      : WeightReader(std::ssize(parts) * parts.front()->shape[0], parts.front()->shape[1]), parts_(std::move(parts)) {}
  DType type() const override { return parts_.front()->dtype; }
  void read(int64_t first, std::span<std::byte> rows) const override {
    const int64_t each = parts_.front()->shape[0];
    const size_t row_bytes = static_cast<size_t>(cols()) * size_of(type());
    for (size_t at = 0; at < rows.size(); at += row_bytes, ++first)
      std::memcpy(rows.data() + at,
                  parts_[static_cast<size_t>(first / each)]->data.data() +
                      static_cast<size_t>(first % each) * row_bytes,
                  row_bytes);
  }
  std::span<const std::byte> stored() const override { return {}; }

 private:
  Matrices parts_;
};

// The same with the matrices of each expert, one below the other, transposed.
class Transposed final : public WeightReader {
 public:
  Transposed(Matrices parts, int64_t of_expert)
      : WeightReader(std::ssize(parts) / of_expert * parts.front()->shape[1], of_expert * parts.front()->shape[0]),
        parts_(std::move(parts)), of_expert_(of_expert) {}
  DType type() const override { return parts_.front()->dtype; }
  void read(int64_t first, std::span<std::byte> rows) const override {
    const int64_t height = parts_.front()->shape[0], width = parts_.front()->shape[1];
    const size_t size = size_of(type()), part_bytes = static_cast<size_t>(height) * size;
    for (size_t at = 0; at < rows.size(); ++first)
      for (int64_t i = 0; i < of_expert_; ++i, at += part_bytes) {
        const TensorView& part = *parts_[static_cast<size_t>(first / width * of_expert_ + i)];
        transpose(part.data.subspan(static_cast<size_t>(first % width) * size), width, rows.subspan(at, part_bytes), 1,
                  height, size);
      }
  }
  std::span<const std::byte> stored() const override { return {}; }

 private:
  Matrices parts_;
  int64_t of_expert_;
};

// A tensor that has the matrices of all experts.
struct Stack {
  std::string stem;         // before ".experts."
  const TensorView* tensor; // [experts, rows, cols]
  bool is_gate_up, is_transposed;

  int64_t experts() const { return tensor->shape[0]; }
  std::vector<std::string> parts(int64_t expert) const {
    const std::string name = fmt::format("{}.experts.{}.", stem, expert);
    if (!is_gate_up) return {name + "down_proj.weight"};
    return {name + "gate_proj.weight", name + "up_proj.weight"};
  }
};

[[noreturn]] void refuse(const std::string& what, const Safetensors& file) {
  throw Error(ErrorKind::data, what).at(file.path().string()).advise("take the folder as it was published");
}

// Which way round the two stacks of a layer are, in which the width of rows is that of gate_up's columns and down's
// rows, and down has half as many columns as gate_up has rows.
bool is_transposed(const TensorView& gate_up, const TensorView& down, const Safetensors& file) {
  const auto &a = gate_up.shape, &b = down.shape;
  const bool is_stack = a.size() == 3 && b.size() == 3 && a[0] == b[0] && a[0] > 0 && !gate_up.reader && !down.reader;
  if (is_stack && a[2] == b[1] && a[1] == 2 * b[2]) return false;
  if (is_stack && a[1] == b[2] && a[2] == 2 * b[1]) return true;
  refuse(fmt::format("tensors {} and {} have the shapes {} and {}, which are not those of experts", shown(gate_up.name),
                     shown(down.name), shape_text(a), shape_text(b)),
         file);
}

std::optional<Stack> stack_of(const TensorView& tensor, const Safetensors& file) {
  const bool is_gate_up = tensor.name.ends_with(gate_up_end);
  if (!is_gate_up && !tensor.name.ends_with(down_end)) return std::nullopt;
  const std::string stem = tensor.name.substr(0, tensor.name.size() - (is_gate_up ? gate_up_end : down_end).size()),
                    other_name = stem + std::string(is_gate_up ? down_end : gate_up_end);
  const TensorView* other = file.find(other_name);
  if (!other) refuse(fmt::format("tensor {} is missing, and {} is there", shown(other_name), shown(tensor.name)), file);
  return Stack{stem, &tensor, is_gate_up,
               is_gate_up ? is_transposed(tensor, *other, file) : is_transposed(*other, tensor, file)};
}

void divide(const Stack& stack, std::vector<TensorView>& out) {
  const TensorView& tensor = *stack.tensor;
  const auto bytes = tensor.data.size() / static_cast<size_t>(stack.experts());
  for (int64_t expert = 0; expert < stack.experts(); ++expert) {
    const auto matrix = tensor.data.subspan(static_cast<size_t>(expert) * bytes, bytes);
    const std::vector<std::string> names = stack.parts(expert);
    const int64_t rows = tensor.shape[stack.is_transposed ? 2 : 1] / std::ssize(names);
    for (size_t i = 0; i < names.size(); ++i) {
      TensorView& part = out.emplace_back(tensor);
      part.name = names[i];
      part.shape = {rows, tensor.shape[stack.is_transposed ? 1 : 2]};
      part.data = {};
      if (stack.is_transposed)
        part.reader = std::make_shared<Columns>(tensor, matrix, static_cast<int64_t>(i) * rows, rows);
      else
        part.data = matrix.subspan(i * bytes / names.size(), bytes / names.size());
    }
  }
}

} // namespace

Safetensors with_experts_apart(const Safetensors& file, bool reads_transposed) {
  std::vector<TensorView> tensors;
  bool any = false;
  for (const TensorView& tensor : file.tensors()) {
    const auto stack = stack_of(tensor, file);
    if (!stack) {
      tensors.push_back(tensor);
      continue;
    }
    if (stack->is_transposed && !reads_transposed)
      throw Error(ErrorKind::data, "tensor {} has the matrices of experts transposed", shown(tensor.name))
          .at(file.path().string())
          .advise("`fvlm-engine import` makes a model directory of it, which can be read");
    divide(*stack, tensors);
    any = true;
  }
  return any ? file.view(std::move(tensors)) : file;
}

nlohmann::json stacks_of(const Safetensors& file) {
  nlohmann::json stacks = nlohmann::json::object();
  for (const TensorView& tensor : file.tensors())
    if (const auto stack = stack_of(tensor, file)) stacks[tensor.name] = stack->is_transposed;
  return stacks;
}

void stack_experts(WholeModelForm& form, const nlohmann::json& stacks, const std::filesystem::path& where) {
  for (const auto& [name, transposed] : stacks.items()) {
    const bool is_gate_up = name.ends_with(gate_up_end);
    const Stack stack{name.substr(0, name.rfind(".experts.")), nullptr, is_gate_up, transposed == true};
    if (form.tensors.contains(stack.parts(0).front() + "_packed")) continue; // codes stay apart, as others publish them
    Matrices parts;
    std::vector<std::string> names;
    for (int64_t expert = 0; form.tensors.contains(stack.parts(expert).front()); ++expert)
      for (std::string& part : stack.parts(expert))
        if (const auto found = form.tensors.find(part); found != form.tensors.end()) {
          parts.push_back(found->second);
          names.push_back(std::move(part));
        }
    const int64_t of_expert = is_gate_up ? 2 : 1, experts = std::ssize(parts) / of_expert;
    const bool fits =
        experts > 0 && std::ranges::all_of(parts, [&](const TensorView* part) {
          return part->shape.size() == 2 && part->shape == parts.front()->shape && part->dtype == parts.front()->dtype;
        });
    if (!transposed.is_boolean() || !fits)
      throw Error(ErrorKind::data, "{} has no matrices of experts in this model", shown(name))
          .at(where.string())
          .advise("the file was changed or damaged: import the model anew");
    auto& made = *form.joined.emplace_back(std::make_unique<WholeModelForm::Joined>());
    made.view.name = name;
    made.view.dtype = parts.front()->dtype;
    if (stack.is_transposed)
      made.view.reader = std::make_shared<Transposed>(std::move(parts), of_expert);
    else
      made.view.reader = std::make_shared<Stacked>(std::move(parts));
    made.view.shape = {experts, made.view.reader->rows() / experts, made.view.reader->cols()};
    for (const std::string& part : names) form.tensors.erase(part);
    form.tensors.emplace(name, &made.view);
  }
}

} // namespace fvlm
