#include "model/weights/safetensors.h"
#include "model/weights/safetensors_writer.h"
#include "weights/workshop.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;

namespace {

// Tensors of every type and of odd shapes, with bytes of their own.
std::vector<TensorInfo> every_kind() {
  std::vector<TensorInfo> out;
  for (const char* dtype : {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"})
    out.push_back({std::string("of.") + dtype, *dtype_named(dtype), {3, 5}});
  out.push_back({"scalar", DType::f32, {}});
  out.push_back({"empty", DType::f16, {0, 7}});
  out.push_back({"näme \"with\" quotes", DType::i8, {1, 1, 1, 3}});
  return out;
}

std::vector<std::byte> bytes_of(const TensorInfo& tensor) {
  std::vector<std::byte> out(tensor.byte_size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<std::byte>(tensor.dtype == DType::boolean ? i % 2 : (i * 7 + tensor.name.size()) % 64);
  return out;
}

void write_all(const fs::path& path, const std::vector<TensorInfo>& tensors, size_t piece = 1 << 20) {
  SafetensorsWriter writer(path, tensors);
  for (const TensorInfo& tensor : writer.order()) {
    auto bytes = bytes_of(tensor);
    for (std::span<const std::byte> rest = bytes; !rest.empty(); rest = rest.subspan(std::min(piece, rest.size())))
      writer.append(rest.first(std::min(piece, rest.size())));
  }
  writer.commit();
}

void expect_all(const Safetensors& file, const std::vector<TensorInfo>& tensors) {
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const TensorInfo& tensor : tensors) {
    const TensorView* found = file.find(tensor.name);
    ASSERT_TRUE(found) << tensor.name;
    EXPECT_EQ(static_cast<const TensorInfo&>(*found), tensor) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(found->data, bytes_of(tensor))) << tensor.name;
  }
}

} // namespace

TEST(Safetensors, ReadsWhatWasWritten) {
  Folder folder;
  for (size_t piece : {1, 3, 1 << 20}) {
    write_all(folder / "a.safetensors", every_kind(), piece);
    Safetensors file = Safetensors::open(folder / "a.safetensors");
    expect_all(file, every_kind());
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.find("of.F3"), nullptr);
    uint64_t sum = 0;
    for (const TensorInfo& tensor : every_kind()) sum += tensor.byte_size();
    EXPECT_EQ(file.byte_size(), sum);
  }
}

TEST(Safetensors, TensorsComeInFileOrder) {
  Folder folder;
  put_file(folder / "a.safetensors", safetensors_bytes(R"({"z":{"dtype":"I8","shape":[2],"data_offsets":[3,5]},)"
                                                       R"("a":{"dtype":"I8","shape":[0],"data_offsets":[3,3]},)"
                                                       R"("m":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}   )",
                                                       5));
  Safetensors file = Safetensors::open(folder / "a.safetensors");
  std::vector<std::string> names;
  for (const TensorView& tensor : file.tensors()) names.push_back(tensor.name);
  EXPECT_THAT(names, testing::ElementsAre("m", "a", "z"));
}

TEST(Safetensors, FileIsMappedAndOutlivesItsName) {
  Folder folder;
  write_all(folder / "a.safetensors", every_kind());
  Safetensors file = Safetensors::open(folder / "a.safetensors");
  fs::remove(folder / "a.safetensors");
  expect_all(file, every_kind());
  for (const TensorView& tensor : file.tensors()) file.drop(tensor);
  expect_all(file, every_kind());
  const std::byte* first = file.tensors()[0].data.data();
  Safetensors copy = file; // NOLINT(performance-unnecessary-copy-initialization): the copy is what is looked at
  EXPECT_EQ(copy.tensors()[0].data.data(), first);
  EXPECT_EQ(file.tensors()[1].data.data(), first + file.tensors()[0].data.size());
}

TEST(Safetensors, ShardsAreReadAsOneAlsoThroughLinks) {
  Folder folder;
  auto all = every_kind();
  std::vector<TensorInfo> left(all.begin(), all.begin() + 5), right(all.begin() + 5, all.end());
  fs::create_directories(folder / "blobs");
  fs::create_directories(folder / "snapshot");
  write_all(folder / "blobs/one", left);
  write_all(folder / "blobs/two", right);
  fs::create_symlink("../blobs/one", folder / "snapshot/model-00001-of-00002.safetensors");
  fs::create_symlink("../blobs/two", folder / "snapshot/model-00002-of-00002.safetensors");
  nlohmann::json index = {{"metadata", {{"total_size", 1}}}};
  for (const auto& tensor : left) index["weight_map"][tensor.name] = "model-00001-of-00002.safetensors";
  for (const auto& tensor : right) index["weight_map"][tensor.name] = "model-00002-of-00002.safetensors";
  put_file(folder / "snapshot/model.safetensors.index.json", index.dump());
  Safetensors file = Safetensors::open(folder / "snapshot");
  expect_all(file, all);
  for (const TensorView& tensor : file.tensors()) file.drop(tensor);
  expect_all(file, all);
}

TEST(Safetensors, MissingNameIsReportedWithTheNearest) {
  Folder folder;
  write_all(folder / "a.safetensors", every_kind());
  Safetensors file = Safetensors::open(folder / "a.safetensors");
  EXPECT_THAT(data_error_of([&] { file.at("scalr"); }),
              testing::AllOf(testing::HasSubstr("no tensor \"scalr\""), testing::HasSubstr("\"scalar\"")));
}

TEST(SafetensorsWriter, KeepsTensorsAlignedAndTheHeaderAMultipleOfEight) {
  Folder folder;
  write_all(folder / "a.safetensors", every_kind());
  std::string bytes = read_file(folder / "a.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  Safetensors file = Safetensors::open(folder / "a.safetensors");
  for (const TensorView& tensor : file.tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % size_of(tensor.dtype), 0u) << tensor.name;
}

TEST(SafetensorsWriter, UncommittedFileDoesNotAppear) {
  Folder folder;
  {
    SafetensorsWriter writer(folder / "a.safetensors", {{"x", DType::f32, {4}}});
    writer.append(std::vector<std::byte>(15));
    EXPECT_THROW(writer.commit(), Error);
    EXPECT_THROW(writer.append(std::vector<std::byte>(2)), Error);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(SafetensorsWriter, ChecksumsAreOfEachTensorsBytes) {
  Folder folder;
  SafetensorsWriter writer(folder / "a.safetensors", every_kind());
  for (const TensorInfo& tensor : writer.order()) writer.append(bytes_of(tensor));
  auto checksums = writer.commit();
  ASSERT_EQ(checksums.size(), writer.order().size());
  for (size_t i = 0; i < checksums.size(); ++i) {
    Xxh64 hash;
    hash.update(bytes_of(writer.order()[i]));
    EXPECT_EQ(checksums[i], hash.value()) << writer.order()[i].name;
  }
}

// The Python library reads what we write to the same bytes, and writes the same file from it.
TEST(SafetensorsWriter, WritesWhatThePythonLibraryWrites) {
  skip_without("safetensors");
  if (IsSkipped()) return;
  Folder folder;
  auto kinds = every_kind();
  std::erase_if(kinds, [](const TensorInfo& tensor) {
    return name_of(tensor.dtype).starts_with("U") && tensor.dtype != DType::u8;
  });
  write_all(folder / "ours.safetensors", kinds);
  put_file(folder / "again.py", R"(
import sys
from safetensors.torch import load_file, save_file
folder = sys.argv[1]
tensors = load_file(folder + "/ours.safetensors")
save_file(tensors, folder + "/theirs.safetensors", metadata={"format": "pt"})
)");
  std::string command =
      std::string(FVLM_PYTHON) + " -B '" + (folder / "again.py").string() + "' '" + folder.path().string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  expect_all(Safetensors::open(folder / "theirs.safetensors"), kinds);
  EXPECT_TRUE(read_file(folder / "ours.safetensors") == read_file(folder / "theirs.safetensors"));
}
