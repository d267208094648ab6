// Reads Thrift's compact protocol, in which Parquet writes its metadata. Nothing of it is trusted.
#pragma once
#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fvlm::parquet {

// The bytes end within the struct: more of the file may help.
class EndOfBytes : public Error {
 public:
  EndOfBytes() : Error(ErrorKind::data, "its metadata end too early") {}
};

class ThriftReader {
 public:
  enum Type : uint8_t {
    yes = 1,
    no = 2,
    i8 = 3,
    i16 = 4,
    i32 = 5,
    i64 = 6,
    real = 7,
    binary = 8,
    list = 9,
    set = 10,
    map = 11,
    record = 12
  };

  explicit ThriftReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t position() const { return at_; }

  // Calls back for each field of a struct, which has to read its value or skip(type).
  template <class OnField>
  void fields(OnField&& on_field) {
    const Nesting nesting(*this);
    int64_t id = 0;
    while (true) {
      const uint8_t head = byte();
      if (head == 0) return;
      const auto type = static_cast<Type>(head & 15);
      id = head >> 4 ? id + (head >> 4) : integer();
      on_field(id, type);
    }
  }

  template <class OnItem>
  void items(OnItem&& on_item) {
    const Nesting nesting(*this);
    const uint8_t head = byte();
    const uint64_t count = head >> 4 == 15 ? varint() : head >> 4;
    if (count > bytes_.size() - at_) throw EndOfBytes(); // an item has a byte at least
    for (uint64_t i = 0; i < count; ++i) on_item(static_cast<Type>(head & 15));
  }

  int64_t integer() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }
  std::string_view text() {
    const uint64_t size = varint();
    if (size > bytes_.size() - at_) throw EndOfBytes();
    at_ += size;
    return {reinterpret_cast<const char*>(bytes_.data()) + at_ - size, size};
  }

  void skip(Type type) {
    switch (type) {
    case yes:
    case no:
      return;
    case i8:
      byte();
      return;
    case i16:
    case i32:
    case i64:
      varint();
      return;
    case real:
      for (int i = 0; i < 8; ++i) byte();
      return;
    case binary:
      text();
      return;
    case list:
    case set:
      return items([this](Type item) { skip_item(item); });
    case record:
      return fields([this](int64_t, Type field) { skip(field); });
    case map:
      break;
    }
    throw Error(ErrorKind::data, "its metadata are damaged");
  }

 private:
  struct Nesting {
    explicit Nesting(ThriftReader& reader_) : reader(reader_) {
      if (++reader.depth_ > 64) throw Error(ErrorKind::data, "its metadata are nested too deeply");
    }
    ~Nesting() { --reader.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    ThriftReader& reader;
  };

  // In a list, a boolean takes a byte.
  void skip_item(Type type) { type == yes || type == no ? void(byte()) : skip(type); }

  uint8_t byte() {
    if (at_ >= bytes_.size()) throw EndOfBytes();
    return std::to_integer<uint8_t>(bytes_[at_++]);
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      value |= uint64_t{next & 0x7fU} << shift;
      if (next < 0x80) return value;
    }
    throw Error(ErrorKind::data, "its metadata are damaged");
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  int depth_ = 0;
};

} // namespace fvlm::parquet
