#include "model/weights/safetensors.h"
#include "weights/workshop.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <gmock/gmock.h>

using namespace fvlm;
using namespace fvlm::testing_weights;

namespace {

struct Malformed {
  std::string name;
  std::string bytes;
  std::vector<std::string> words; // that its error has to say
};

std::ostream& operator<<(std::ostream& out, const Malformed& one) {
  return out << one.name;
}

std::string length_only(uint64_t length) {
  return {reinterpret_cast<const char*>(&length), sizeof length};
}

// One tensor "a" whose entry is `entry`, before `data` bytes.
std::string entry(const std::string& entry, size_t data = 8) {
  return safetensors_bytes("{\"a\":" + entry + "}", data);
}

std::string shape(const std::string& shape, size_t data = 8) {
  return entry(R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,)" + std::to_string(data) + "]}", data);
}

std::string offsets(const std::string& offsets, size_t data = 8) {
  return entry(R"({"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}", data);
}

// Tensors of 2 floats each at these places.
std::string places(const std::vector<std::pair<int, int>>& places, size_t data) {
  std::string header = "{";
  for (size_t i = 0; i < places.size(); ++i)
    header += fmt::format(R"({}"t{}":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}})", i ? "," : "", i,
                          places[i].first, places[i].second);
  return safetensors_bytes(header + "}", data);
}

const char* good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

std::vector<Malformed> malformed() {
  std::string deep = "{\"a\":" + std::string(100000, '[');
  std::string nested = "{\"a\":";
  for (int i = 0; i < 20000; ++i) nested += "{\"a\":";
  return {
      {"empty_file", "", {"0 bytes", "8-byte length"}},
      {"shorter_than_its_length", "1234567", {"7 bytes", "8-byte length"}},
      {"header_longer_than_the_file",
       length_only(1000) + "{}",
       {"header of 1000 bytes", "2 bytes follow", "cut short"}},
      {"header_beyond_the_formats_bound", length_only(100'000'001) + "{}", {"100000001", "allows 100000000"}},
      {"header_length_of_all_ones", length_only(~uint64_t{0}) + "{}", {"18446744073709551615", "allows 100000000"}},
      {"no_header_at_all", length_only(0), {"begin with '{'"}},
      {"header_begins_with_a_space", safetensors_bytes(" {}", 0), {"begin with '{'"}},
      {"header_is_a_list", safetensors_bytes("[]", 0), {"begin with '{'"}},
      {"header_is_a_pickle", safetensors_bytes("\x80\x02}q", 0), {"begin with '{'"}},
      {"header_ends_early", safetensors_bytes("{\"a\":", 8), {"no valid JSON", "byte"}},
      {"header_followed_by_another", safetensors_bytes("{}{}", 0), {"no valid JSON"}},
      {"header_is_not_utf8", safetensors_bytes("{\"\xff\":1}", 8), {"no valid JSON", "UTF-8"}},
      {"header_with_a_zero_byte", safetensors_bytes(std::string("{}\0", 3), 0), {"no valid JSON"}},
      {"entry_is_a_number", entry("12"), {"\"a\"", "must be an object", "12"}},
      {"entry_is_null", entry("null"), {"\"a\"", "must be an object", "null"}},
      {"deep_lists", safetensors_bytes(deep, 8), {"\"a\"", "must be an object", "a list"}},
      {"deep_objects", safetensors_bytes(nested, 8), {"\"a\"", "key \"a\" is unknown"}},
      {"two_tensors_of_one_name",
       safetensors_bytes(fmt::format("{{\"a\":{},\"a\":{}}}", good, good), 8),
       {"\"a\"", "stands twice"}},
      {"a_key_given_twice",
       entry(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       {"\"dtype\"", "stands twice"}},
      {"unknown_key",
       entry(R"({"dtype":"F32","shape":[2],"strides":[1],"data_offsets":[0,8]})"),
       {"\"strides\"", "unknown"}},
      {"dtype_missing", entry(R"({"shape":[2],"data_offsets":[0,8]})"), {"\"a\"", "dtype is missing"}},
      {"shape_missing", entry(R"({"dtype":"F32","data_offsets":[0,8]})"), {"shape is missing"}},
      {"offsets_missing", entry(R"({"dtype":"F32","shape":[2]})"), {"data_offsets is missing"}},
      {"dtype_unknown",
       entry(R"({"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]})"),
       {"F8_E5M2", "not supported", "BF16"}},
      {"dtype_is_a_number", entry(R"({"dtype":32,"shape":[2],"data_offsets":[0,8]})"), {"dtype cannot be 32"}},
      {"dtype_of_another_size",
       entry(R"({"dtype":"F16","shape":[2],"data_offsets":[0,8]})"),
       {"F16 [2] takes 4 bytes", "give it 8"}},
      {"shape_of_another_size", shape("[3]"), {"F32 [3] takes 12 bytes", "give it 8"}},
      {"shape_negative", shape("[-2]"), {"\"a\"", "shape holds -2"}},
      {"shape_fraction", shape("[2.0]"), {"shape holds 2.0"}},
      {"shape_text", shape("[\"2\"]"), {"shape holds the text \"2\""}},
      {"shape_nested", shape("[[2]]"), {"shape holds a list"}},
      {"shape_beyond_int64", shape("[9223372036854775808]"), {"shape holds 9223372036854775808"}},
      {"shape_beyond_uint64", shape("[99999999999999999999999]"), {"shape holds 99999999999999999999999"}},
      {"shape_overflows", shape("[4294967296,4294967296,2]"), {"[4294967296, 4294967296, 2]", "overflows"}},
      {"shape_overflows_behind_a_zero", shape("[0,9223372036854775807,4]", 0), {"overflows"}},
      {"shape_of_many_dimensions",
       shape("[2" +
             [] {
               std::string ones;
               for (int i = 0; i < 40; ++i) ones += ",1";
               return ones;
             }() +
             "]"),
       {"more than 32 dimensions"}},
      {"offsets_negative", offsets("[-8,0]"), {"data_offsets", "hold -8"}},
      {"offsets_of_one_number", offsets("[0]"), {"two numbers"}},
      {"offsets_of_three_numbers", offsets("[0,8,16]"), {"hold 16"}},
      {"offsets_fraction", offsets("[0,8.0]"), {"hold 8.0"}},
      {"offsets_backwards", offsets("[8,0]"), {"[8, 0]", "end before they begin"}},
      {"offsets_past_the_end", offsets("[8,16]"), {"[8, 16]", "past the end", "8 bytes of data"}},
      {"offsets_huge", offsets("[18446744073709551608,18446744073709551615]"), {"past the end"}},
      {"file_cut_short", offsets("[0,8]", 7), {"past the end", "7 bytes", "cut short"}},
      {"overlap", places({{0, 8}, {4, 12}}, 12), {"\"t1\"", "begins at byte 4", "ends at 8", "overlap"}},
      {"same_place_twice", places({{0, 8}, {0, 8}}, 8), {"overlap"}},
      {"hole", places({{0, 8}, {12, 20}}, 20), {"\"t1\"", "begins at byte 12", "ends at 8", "a hole"}},
      {"hole_at_the_beginning", places({{4, 12}}, 12), {"\"t0\"", "begins at byte 4", "a hole"}},
      {"bytes_behind_the_last", places({{0, 8}}, 11), {"3 bytes follow the last tensor"}},
      {"data_without_tensors", safetensors_bytes("{}", 4), {"4 bytes follow"}},
      {"tensor_without_name", safetensors_bytes(fmt::format("{{\"\":{}}}", good), 8), {"empty name"}},
      {"metadata_is_no_object", safetensors_bytes("{\"__metadata__\":[]}", 0), {"__metadata__", "must be an object"}},
      {"metadata_holds_a_number",
       safetensors_bytes("{\"__metadata__\":{\"format\":1}}", 0),
       {"\"format\" in __metadata__", "must be text"}},
      {"metadata_key_twice",
       safetensors_bytes("{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0),
       {"\"a\" stands twice in __metadata__"}},
      {"metadata_twice",
       safetensors_bytes("{\"__metadata__\":{},\"__metadata__\":{}}", 0),
       {"__metadata__ stands twice"}},
      {"terminal_codes_in_a_name", safetensors_bytes("{\"\\u001b[31m\":3}", 8), {"\\u001b[31m"}},
  };
}

class MalformedSafetensors : public testing::TestWithParam<Malformed> {};

} // namespace

TEST_P(MalformedSafetensors, IsRefusedWithItsOwnWords) {
  Folder folder;
  put_file(folder / "model.safetensors", GetParam().bytes);
  std::string text = data_error_of([&] { Safetensors::open(folder / "model.safetensors"); });
  EXPECT_THAT(text, testing::StartsWith((folder / "model.safetensors").string() + ": "));
  EXPECT_THAT(text, testing::HasSubstr("\n  ")) << "it says what to do";
  for (const std::string& word : GetParam().words) EXPECT_THAT(text, testing::HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedSafetensors, testing::ValuesIn(malformed()),
                         [](const auto& info) { return info.param.name; });

// Whichever byte of a valid file's header is changed, the file is read or refused, never read past its end.
TEST(MalformedSafetensorsBytes, NoChangedByteDoesHarm) {
  Folder folder;
  std::string file = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[],"data_offsets":[8,9]}})",
      9);
  int refused = 0, read = 0;
  for (size_t at = 0; at < file.size() - 9; ++at)
    for (unsigned char byte : {0x00, 0x22, 0x2d, 0x30, 0x39, 0x5b, 0x7b, 0x7d, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(byte);
      put_file(folder / "m.safetensors", changed);
      try {
        uint64_t sum = 0;
        Safetensors opened = Safetensors::open(folder / "m.safetensors");
        for (const TensorView& tensor : opened.tensors())
          for (std::byte value : tensor.data) sum += static_cast<uint64_t>(value);
        EXPECT_LE(sum, 9u);
        ++read;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::data) << error.text();
        ++refused;
      }
    }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 50) << "a letter of a name may change";
}

namespace {

constexpr const char* one_tensor = R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

// Two shards, "a" in the first and "b" in the second, and an index that says `weight_map`.
std::string shards_error(const std::string& index, const std::string& second_name = "b") {
  Folder folder;
  put_file(folder / "1.safetensors", safetensors_bytes(std::string("{\"a") + one_tensor, 8));
  put_file(folder / "2.safetensors", safetensors_bytes("{\"" + second_name + one_tensor, 8));
  put_file(folder / "model.safetensors.index.json", index);
  return data_error_of([&] { Safetensors::open(folder.path()); });
}

using testing::AllOf;
using testing::HasSubstr;

} // namespace

TEST(MalformedIndex, ReportsAllNamesMissingFromShards) {
  EXPECT_THAT(
      shards_error(
          R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors","d":"2.safetensors"}})"),
      AllOf(HasSubstr("\"c\" should be in 1.safetensors"), HasSubstr("\"d\" should be in 2.safetensors"),
            HasSubstr("in no shard")));
}

TEST(MalformedIndex, TensorInAnotherShardThanNamed) {
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"2.safetensors","b":"1.safetensors"}})"),
              AllOf(HasSubstr("\"a\" should be in 2.safetensors, and is in 1.safetensors"), HasSubstr("\"b\" should")));
}

TEST(MalformedIndex, TensorThatTheIndexDoesNotName) {
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"1.safetensors","z":"2.safetensors"}})"),
              AllOf(HasSubstr("\"b\" of 2.safetensors is not in the index"), HasSubstr("\"z\"")));
}

TEST(MalformedIndex, OneNameInTwoShards) {
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})", "a"),
              HasSubstr("tensor \"a\" lies in 1.safetensors and in 2.safetensors"));
}

TEST(MalformedIndex, ShardsThatLeaveTheFolder) {
  for (const char* name : {"../1.safetensors", "/etc/passwd", "sub/1.safetensors", "..", "", "a\\\\b", "a\\u0000b"})
    EXPECT_THAT(shards_error(std::string(R"({"weight_map":{"a":")") + name + "\"}}"),
                HasSubstr("leaves the index's folder"));
}

TEST(MalformedIndex, MissingShard) {
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"1.safetensors","b":"3.safetensors"}})"),
              AllOf(HasSubstr("3.safetensors"), HasSubstr("missing")));
}

TEST(MalformedIndex, MalformedShard) {
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"1.safetensors","b":"model.safetensors.index.json"}})"),
              AllOf(HasSubstr("model.safetensors.index.json: "), HasSubstr("header of")));
}

TEST(MalformedIndex, InvalidIndex) {
  EXPECT_THAT(shards_error("{\"weight_map\":"), HasSubstr("invalid JSON"));
  EXPECT_THAT(shards_error("[]"), HasSubstr("JSON array"));
  EXPECT_THAT(shards_error("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(shards_error(R"({"weight_map":["a"]})"), HasSubstr("weight_map"));
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":1}})"), HasSubstr("must be a file name"));
  EXPECT_THAT(shards_error(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
              HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(shards_error("{\"weight_map\":" + std::string(100000, '[')), HasSubstr("levels deep"));
}

TEST(MalformedFolder, WithoutWeightsSaysWhatIsExpected) {
  Folder folder;
  EXPECT_THAT(data_error_of([&] { Safetensors::open(folder.path()); }), HasSubstr("no model.safetensors"));
  put_file(folder / "pytorch_model.bin", "x");
  EXPECT_THAT(data_error_of([&] { Safetensors::open(folder.path()); }), HasSubstr("save_pretrained"));
  EXPECT_THAT(data_error_of([&] { Safetensors::open(folder / "missing.safetensors"); }), HasSubstr("No such file"));
}
