#include "gguf/file.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"
#include "model/weights/convert.h"

#include <algorithm>
#include <numeric>

namespace fvlm::gguf {
namespace {

constexpr uint64_t alignment = 32, piece_elements = uint64_t{1} << 18; // a piece consists of whole blocks
constexpr uint32_t version = 3;

// Numbers and texts, little-endian.
class Bytes {
 public:
  template <class Number>
  requires std::is_arithmetic_v<Number>
  void put(Number number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void put(const std::string& text) {
    put(uint64_t{text.size()});
    text_ += text;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// The numbers by which a file knows the types of values.
template <class T>
constexpr uint32_t id_of = std::is_same_v<T, uint32_t>      ? 4
                           : std::is_same_v<T, int32_t>     ? 5
                           : std::is_same_v<T, float>       ? 6
                           : std::is_same_v<T, bool>        ? 7
                           : std::is_same_v<T, std::string> ? 8
                                                            : 9;

template <class T>
void put_value(Bytes& out, const T& value) {
  out.put(value);
}

template <class T>
void put_value(Bytes& out, const std::vector<T>& list) {
  out.put(id_of<T>);
  out.put(uint64_t{list.size()});
  for (const T& each : list) out.put(each);
}

uint64_t aligned(uint64_t size) {
  return (size + alignment - 1) / alignment * alignment;
}

} // namespace

int64_t Tensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies());
}

void File::set(const std::string& key, Value value) {
  const auto found = std::ranges::find(keys, key, &std::pair<std::string, Value>::first);
  if (found != keys.end())
    found->second = std::move(value);
  else
    keys.emplace_back(key, std::move(value));
}

uint64_t File::tensor_bytes() const {
  uint64_t sum = 0;
  for (const Tensor& tensor : tensors) sum += tensor.type->bytes(tensor.elements());
  return sum;
}

void File::write(const std::filesystem::path& folder, const std::function<void(uint64_t bytes)>& written,
                 std::map<std::string, uint64_t>& overflowed) const {
  Bytes header;
  for (const char letter : {'G', 'G', 'U', 'F'}) header.put(letter);
  header.put(version);
  header.put(uint64_t{tensors.size()});
  header.put(uint64_t{keys.size()});
  for (const auto& [key, value] : keys) {
    header.put(key);
    std::visit(
        [&](const auto& each) {
          header.put(id_of<std::decay_t<decltype(each)>>);
          put_value(header, each);
        },
        value);
  }
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    header.put(tensor.name);
    header.put(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size)
      header.put(static_cast<uint64_t>(*size));
    header.put(tensor.type->id);
    header.put(offset);
    offset += aligned(tensor.type->bytes(tensor.elements()));
  }

  AtomicFile file(folder / name);
  const auto pad = [&](uint64_t size) { file.write(std::string(aligned(size) - size, '\0')); };
  file.write(header.text());
  pad(header.text().size());
  std::vector<float> numbers;
  std::vector<std::byte> encoded;
  for (const Tensor& tensor : tensors) {
    const auto elements = static_cast<uint64_t>(tensor.elements());
    for (uint64_t first = 0; first < elements; first += piece_elements) {
      numbers.resize(std::min(piece_elements, elements - first));
      tensor.read(first, numbers);
      if (const uint64_t count = count_not_finite(std::as_bytes(std::span(numbers)), DType::f32))
        throw Error(ErrorKind::data, "{} has {} that are not finite", shown(tensor.name), counted(count, "value"))
            .advise("export a sound checkpoint, or fetch the model again");
      if (const uint64_t lost = encode(*tensor.type, numbers, encoded)) overflowed[tensor.name] += lost;
      file.write(encoded);
      written(encoded.size());
    }
    pad(tensor.type->bytes(tensor.elements()));
  }
  file.commit();
}

Read numbers_of(const TensorView& view, uint64_t begin) {
  return [&view, begin](uint64_t first, std::span<float> out) {
    const size_t size = size_of(view.dtype);
    convert(view.data.subspan((begin + first) * size, out.size() * size), view.dtype, std::as_writable_bytes(out),
            DType::f32);
  };
}

Read shifted(Read read, float term) {
  return [read = std::move(read), term](uint64_t first, std::span<float> out) {
    read(first, out);
    for (float& number : out) number += term;
  };
}

Read blocks_of(const TensorView& view, uint64_t width, std::function<uint64_t(uint64_t block)> from) {
  return [read = numbers_of(view), width, from = std::move(from)](uint64_t first, std::span<float> out) {
    for (size_t done = 0; done < out.size();) {
      const uint64_t block = (first + done) / width, at = (first + done) % width;
      const size_t count = std::min<size_t>(width - at, out.size() - done);
      read(from(block) * width + at, out.subspan(done, count));
      done += count;
    }
  };
}

namespace {

// `from`: the row of a head, of so many, that comes to be a row of it.
template <class From>
Read rows_of_heads(const TensorView& view, int64_t heads, From from) {
  const auto rows = static_cast<uint64_t>(view.shape[0]), head = rows / static_cast<uint64_t>(heads);
  return blocks_of(view, view.elements() / rows,
                   [=](uint64_t row) { return row - row % head + from(row % head, head); });
}

} // namespace

Read neighbours(const TensorView& view, int64_t heads) {
  return rows_of_heads(view, heads, [](uint64_t row, uint64_t head) { return row / 2 + row % 2 * (head / 2); });
}

Read halves(const TensorView& view, int64_t heads, int64_t rotated) {
  const auto turned = static_cast<uint64_t>(rotated);
  return rows_of_heads(view, heads, [turned](uint64_t row, uint64_t) {
    return row >= turned ? row : row % (turned / 2) * 2 + row / (turned / 2);
  });
}

} // namespace fvlm::gguf
