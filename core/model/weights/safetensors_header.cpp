#include "model/weights/safetensors_header.h"

#include "base/error.h"
#include "base/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace fvlm {
namespace {

constexpr uint64_t largest_header = 100'000'000; // the format's own bound
constexpr size_t most_dimensions = 32;
constexpr const char* get_it_again = "the file is damaged or was cut short: fetch or write it again";

[[noreturn]] void fail(const std::string& where, std::string what, const char* advice = get_it_again) {
  throw Error(ErrorKind::data, std::move(what)).at(where).advise(advice);
}

struct Entry {
  TensorInfo info;
  uint64_t begin = 0, end = 0;
};

// Takes the header's JSON event by event, so that nothing but the entries themselves is ever held.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(text); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > INT64_MAX) unexpected(std::to_string(value));
      if (entry().info.shape.size() == most_dimensions)
        wrong(fmt::format("it has more than {} dimensions", most_dimensions));
      entry().info.shape.push_back(static_cast<int64_t>(value));
    } else if (place_ == Place::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? entry().begin : entry().end) = value;
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      if (!metadata.emplace(key_, value).second)
        fail(where_, fmt::format("{} stands twice in __metadata__", shown(key_)));
    } else if (place_ == Place::entry && key_ == "dtype") {
      auto dtype = dtype_named(value);
      if (!dtype)
        fail(where_, fmt::format("tensor {}: dtype {} is not supported", shown(entry().info.name), shown(value)),
             fmt::format("one of {}; convert the file", all_dtype_names()).c_str());
      entry().info.dtype = *dtype;
    } else {
      unexpected("the text " + shown(value));
    }
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::top && key_ == "__metadata__") {
      if (had_metadata_) fail(where_, "__metadata__ stands twice in the header");
      had_metadata_ = true;
      place_ = Place::metadata;
    } else if (place_ == Place::top) {
      if (key_.empty()) fail(where_, "a tensor has the empty name");
      entries.emplace_back().info.name = key_;
      seen_ = {};
      place_ = Place::entry;
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(string_t& value) override {
    key_ = value;
    if (place_ != Place::entry) return true;
    bool* seen = value == "dtype"          ? &seen_.dtype
                 : value == "shape"        ? &seen_.shape
                 : value == "data_offsets" ? &seen_.offsets
                                           : nullptr;
    if (!seen) wrong(fmt::format("the key {} is unknown", shown(value)));
    if (std::exchange(*seen, true)) wrong(fmt::format("the key {} stands twice", shown(value)));
    return true;
  }

  bool end_object() override {
    if (place_ == Place::entry) {
      const char* missing = !seen_.dtype ? "dtype" : !seen_.shape ? "shape" : !seen_.offsets ? "data_offsets" : nullptr;
      if (missing) wrong(fmt::format("{} is missing", missing));
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::entry && key_ == "shape")
      place_ = Place::shape;
    else if (place_ == Place::entry && key_ == "data_offsets")
      place_ = Place::offsets, offsets_ = 0;
    else
      unexpected("a list");
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_ != 2) wrong("data_offsets must be two numbers, begin and end");
    place_ = Place::entry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail(where_, fmt::format("the header is no valid JSON in UTF-8, as byte {} of it shows", position));
  }

 private:
  enum class Place { outside, top, metadata, entry, shape, offsets };

  Entry& entry() { return entries.back(); }

  [[noreturn]] void wrong(const std::string& what) {
    fail(where_, fmt::format("tensor {}: {}", shown(entry().info.name), what));
  }

  [[noreturn]] void unexpected(const std::string& found) {
    switch (place_) {
    case Place::outside:
      fail(where_, fmt::format("the header must be a JSON object, and is {}", found));
    case Place::top:
      fail(where_, fmt::format("the entry of {} must be an object, and is {}", shown(key_), found));
    case Place::metadata:
      fail(where_, fmt::format("{} in __metadata__ must be text, and is {}", shown(key_), found));
    case Place::shape:
      wrong(fmt::format("its shape holds {}, and may hold whole numbers from 0 to 2^63 - 1", found));
    case Place::offsets:
      wrong(fmt::format("data_offsets must be two whole numbers from 0 on, and hold {}", found));
    case Place::entry:
      wrong(fmt::format("{} cannot be {}", key_, found));
    }
    std::abort(); // every place is above
  }

  const std::string& where_;
  Place place_ = Place::outside;
  std::string key_;
  bool had_metadata_ = false;
  struct {
    bool dtype = false, shape = false, offsets = false;
  } seen_;
  int offsets_ = 0;
};

// The bytes that a tensor of this shape takes. Dimensions of 0 do not hide an overflow of the others.
uint64_t checked_size(const TensorInfo& info, const std::string& where) {
  uint64_t product = size_of(info.dtype);
  bool empty = false;
  for (int64_t size : info.shape) {
    empty |= size == 0;
    if (__builtin_mul_overflow(product, std::max<uint64_t>(static_cast<uint64_t>(size), 1), &product) ||
        product > INT64_MAX)
      fail(where,
           fmt::format("tensor {}: the size of shape {} overflows 64 bits", shown(info.name), shape_text(info.shape)));
  }
  return empty ? 0 : product;
}

void refuse_duplicates(const std::vector<Entry>& entries, const std::string& where) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.info.name);
  std::ranges::sort(names);
  auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) fail(where, fmt::format("tensor {} stands twice in the header", shown(*twice)));
}

void check_extent(const Entry& entry, uint64_t available, const std::string& where) {
  auto wrong = [&](const std::string& what) {
    fail(where, fmt::format("tensor {}: {}", shown(entry.info.name), what));
  };
  if (entry.begin > entry.end)
    wrong(fmt::format("data_offsets [{}, {}] end before they begin", entry.begin, entry.end));
  if (entry.end > available)
    wrong(fmt::format("data_offsets [{}, {}] reach past the end of the file, which has {} bytes of data", entry.begin,
                      entry.end, available));
  uint64_t size = checked_size(entry.info, where);
  if (entry.end - entry.begin != size)
    wrong(fmt::format("{} {} takes {} bytes, and data_offsets [{}, {}] give it {}", name_of(entry.info.dtype),
                      shape_text(entry.info.shape), size, entry.begin, entry.end, entry.end - entry.begin));
}

} // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, const std::string& where) {
  uint64_t length = 0;
  if (file.size() < sizeof length)
    fail(where,
         fmt::format("{} bytes are no safetensors file: it begins with the 8-byte length of its header", file.size()));
  std::memcpy(&length, file.data(), sizeof length);
  if (length > largest_header)
    fail(where, fmt::format("a header of {} bytes is announced, and safetensors allows {}", length, largest_header),
         "this is no safetensors file, or it is damaged: fetch it again");
  if (length > file.size() - sizeof length)
    fail(where,
         fmt::format("a header of {} bytes is announced, and {} bytes follow", length, file.size() - sizeof length));
  std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, length);
  if (!text.starts_with('{')) fail(where, "the header must begin with '{'");
  if (auto zero = text.find('\0'); zero != text.npos) // the parser would take it for the end
    fail(where, fmt::format("the header is no valid JSON: byte {} of it is 0", zero));

  HeaderReader reader(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  refuse_duplicates(reader.entries, where);
  std::ranges::sort(reader.entries, [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  std::span<const std::byte> data = file.subspan(sizeof length + length);
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  header.tensors.reserve(reader.entries.size());
  uint64_t reached = 0;
  for (Entry& entry : reader.entries) {
    check_extent(entry, data.size(), where);
    if (entry.begin != reached)
      fail(where, fmt::format("tensor {} begins at byte {} of the data, and the one before it ends at {}: {}",
                              shown(entry.info.name), entry.begin, reached,
                              entry.begin > reached ? "a hole" : "they overlap"));
    reached = entry.end;
    header.tensors.push_back({std::move(entry.info), data.subspan(entry.begin, entry.end - entry.begin)});
  }
  if (reached != data.size())
    fail(where, fmt::format("{} bytes follow the last tensor, which ends at byte {} of the data", data.size() - reached,
                            reached));
  return header;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

} // namespace fvlm
