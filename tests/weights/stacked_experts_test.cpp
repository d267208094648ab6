// Stacks of experts' matrices, which are divided when a folder is opened and joined when one is written.
#include "model/weights/safetensors_writer.h"
#include "model/weights/stacked_experts.h"
#include "model/weights/weight_reader.h"
#include "workshop.h"

#include <nlohmann/json.hpp>

#include <cstring>
#include <gmock/gmock.h>
#include <memory>
#include <numeric>

namespace fvlm {
namespace {

using namespace testing_weights;
using testing::ElementsAre;
using testing::HasSubstr;

// Stacks of 3 experts of a width of 4 with 2 features inside, whose numbers count up.
void write_stacks(const fs::path& path, bool transposed, DType dtype) {
  SafetensorsWriter writer(path, {{"l.mlp.experts.gate_up_proj", dtype, {3, 4, 4}},
                                  {"l.mlp.experts.down_proj", dtype, {3, transposed ? 2 : 4, transposed ? 4 : 2}},
                                  {"l.norm.weight", dtype, {4}}});
  for (const TensorInfo& info : writer.order()) {
    std::vector<double> numbers(info.elements());
    std::iota(numbers.begin(), numbers.end(), info.name.ends_with("down_proj") ? 100 : 0);
    std::vector<float> narrow(numbers.begin(), numbers.end());
    writer.append(dtype == DType::f64 ? std::as_bytes(std::span(numbers)) : std::as_bytes(std::span(narrow)));
  }
  writer.commit();
}

template <class Number>
std::vector<Number> numbers_of(const TensorView& view) {
  std::vector<Number> numbers(view.elements());
  if (view.reader)
    view.reader->read(0, std::as_writable_bytes(std::span(numbers)));
  else
    std::memcpy(numbers.data(), view.data.data(), view.data.size());
  return numbers;
}

TEST(StackedExperts, AreDividedAndJoinedAgain) {
  const Folder folder;
  for (const bool transposed : {false, true}) {
    SCOPED_TRACE(transposed ? "transposed" : "as they are");
    const fs::path path = folder.path() / (transposed ? "t.safetensors" : "s.safetensors");
    write_stacks(path, transposed, DType::f64);
    const Safetensors file = Safetensors::open(path), apart = with_experts_apart(file, true);
    EXPECT_EQ(apart.tensors().size(), 3 * 3 + 1);
    const TensorView &gate = apart.at("l.mlp.experts.1.gate_proj.weight"),
                     &up = apart.at("l.mlp.experts.1.up_proj.weight"),
                     &down = apart.at("l.mlp.experts.2.down_proj.weight");
    EXPECT_THAT(gate.shape, ElementsAre(2, 4));
    EXPECT_THAT(down.shape, ElementsAre(4, 2));
    if (transposed) {
      EXPECT_THAT(numbers_of<double>(gate), ElementsAre(16, 20, 24, 28, 17, 21, 25, 29));
      EXPECT_THAT(numbers_of<double>(up), ElementsAre(18, 22, 26, 30, 19, 23, 27, 31));
      EXPECT_THAT(numbers_of<double>(down), ElementsAre(116, 120, 117, 121, 118, 122, 119, 123));
      EXPECT_THAT(data_error_of([&] { (void)with_experts_apart(file, false); }), HasSubstr("transposed"));
    } else {
      EXPECT_THAT(numbers_of<double>(gate), ElementsAre(16, 17, 18, 19, 20, 21, 22, 23));
      EXPECT_THAT(numbers_of<double>(up), ElementsAre(24, 25, 26, 27, 28, 29, 30, 31));
      EXPECT_THAT(numbers_of<double>(down), ElementsAre(116, 117, 118, 119, 120, 121, 122, 123));
    }
    const nlohmann::json stacks = stacks_of(file);
    EXPECT_EQ(stacks,
              nlohmann::json({{"l.mlp.experts.gate_up_proj", transposed}, {"l.mlp.experts.down_proj", transposed}}));

    // Plain copies of the matrices, as a model directory has them.
    std::vector<std::unique_ptr<std::vector<double>>> copies;
    std::vector<TensorView> plain;
    for (const TensorView& view : apart.tensors()) {
      copies.push_back(std::make_unique<std::vector<double>>(numbers_of<double>(view)));
      TensorView& copy = plain.emplace_back(view);
      copy.reader = nullptr;
      copy.data = std::as_bytes(std::span(*copies.back()));
    }
    WholeModelForm form;
    for (const TensorView& view : plain) form.tensors.emplace(view.name, &view);
    stack_experts(form, stacks, "whole_model.json");
    ASSERT_EQ(form.tensors.size(), 3);
    for (const TensorView& before : file.tensors()) {
      const TensorView& after = *form.tensors.at(before.name);
      EXPECT_EQ(after.shape, before.shape) << before.name;
      EXPECT_EQ(numbers_of<double>(after), numbers_of<double>(before)) << before.name;
    }
    form.tensors.erase("l.norm.weight");
    EXPECT_THAT(data_error_of([&] { stack_experts(form, stacks, "whole_model.json"); }),
                HasSubstr("no matrices of experts"));
  }
}

TEST(StackedExperts, RowsAreReadInPieces) {
  const Folder folder;
  write_stacks(folder.path() / "t.safetensors", true, DType::f32);
  const Safetensors apart = with_experts_apart(Safetensors::open(folder.path() / "t.safetensors"), true);
  std::vector<float> rows(2 * 2);
  apart.at("l.mlp.experts.2.down_proj.weight").reader->read(1, std::as_writable_bytes(std::span(rows)));
  EXPECT_THAT(rows, ElementsAre(117, 121, 118, 122));
}

TEST(StackedExperts, StacksThatDoNotFitAreRefused) {
  const Folder folder;
  const fs::path path = folder.path() / "model.safetensors";
  const auto with = [&](const std::vector<TensorInfo>& tensors) {
    SafetensorsWriter writer(path, tensors);
    for (const TensorInfo& info : writer.order()) writer.append(std::vector<std::byte>(info.byte_size()));
    writer.commit();
    return data_error_of([&] { (void)with_experts_apart(Safetensors::open(path), true); });
  };
  EXPECT_THAT(with({{"a.experts.gate_up_proj", DType::f32, {2, 4, 6}}}), HasSubstr("a.experts.down_proj\" is missing"));
  EXPECT_THAT(with({{"a.experts.gate_up_proj", DType::f32, {2, 4, 6}}, {"a.experts.down_proj", DType::f32, {2, 6, 3}}}),
              HasSubstr("[2, 4, 6] and [2, 6, 3], which are not those of experts"));
  EXPECT_THAT(with({{"a.experts.gate_up_proj", DType::f32, {2, 4, 6}}, {"a.experts.down_proj", DType::f32, {3, 6, 2}}}),
              HasSubstr("not those of experts"));
}

} // namespace
} // namespace fvlm
