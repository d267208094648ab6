#include "plugin/guard.h"

#include "base/error.h"
#include "plugin/dtype.h"
#include "plugin/untrusted.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace fvlm {
namespace {

// NaN in float32, float64, bfloat16 and float16, and -1 in integers.
constexpr std::byte fill{0xff};
constexpr std::byte zone_pattern{0xa5};
constexpr size_t alignment = 256, zone = 4096; // bytes

std::atomic<int> debug{-1};

size_t item_bytes(const fvlm_tensor& tensor) {
  return (size_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
}

bool is_empty(const fvlm_tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.ndim, [](int64_t size) { return size == 0; });
}

// Bytes from the first to the last element. Strides are never negative in this ABI.
size_t extent_bytes(const fvlm_tensor& tensor) {
  if (is_empty(tensor)) return 0;
  int64_t last = 0;
  for (int32_t i = 0; i < tensor.ndim; ++i) last += (tensor.shape[i] - 1) * tensor.strides[i];
  return (static_cast<size_t>(last) + 1) * item_bytes(tensor);
}

size_t element_count(const fvlm_tensor& tensor) {
  size_t count = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) count *= static_cast<size_t>(tensor.shape[i]);
  return count;
}

// Calls visit(offset in bytes) for every element.
template <class Visit>
void each_element(const fvlm_tensor& tensor, Visit&& visit) {
  if (is_empty(tensor)) return;
  std::vector<int64_t> index(static_cast<size_t>(tensor.ndim), 0);
  while (true) {
    int64_t offset = 0;
    for (size_t i = 0; i < index.size(); ++i) offset += index[i] * tensor.strides[i];
    visit(static_cast<size_t>(offset) * item_bytes(tensor));
    size_t dimension = index.size();
    while (dimension > 0 && ++index[dimension - 1] == tensor.shape[dimension - 1]) index[--dimension] = 0;
    if (dimension == 0) return;
  }
}

std::string place(std::ptrdiff_t offset) {
  return offset < 0 ? fmt::format("{} bytes before its beginning", -offset)
                    : fmt::format("{} bytes past its end", offset);
}

template <class Kind = Error>
Kind failure(const std::string& plugin, std::string_view operation, const std::string& what,
             const std::string& shapes) {
  Kind error(ErrorKind::plugin,
             fmt::format("{}: {}{}", operation, what, shapes.empty() ? "" : "\n  called with" + shapes));
  error.at(plugin).advise("remove '{}' from the recipe's list for this kind, or report this to its author", plugin);
  return error;
}

[[noreturn]] void fail(const std::string& plugin, std::string_view operation, const std::string& what,
                       const std::string& shapes) {
  throw failure(plugin, operation, what, shapes);
}

} // namespace

bool plugin_debug() {
  int now = debug.load(std::memory_order_relaxed);
  if (now < 0) {
    const char* text = std::getenv("FVLM_PLUGIN_DEBUG");
    now = text && *text && std::strcmp(text, "0") != 0;
    debug.store(now, std::memory_order_relaxed);
  }
  return now == 1;
}

void set_plugin_debug(bool on) {
  debug.store(on, std::memory_order_relaxed);
}

GuardedBuffer::GuardedBuffer(size_t bytes)
    : bytes_(bytes), memory_(static_cast<std::byte*>(::operator new(zone + bytes + zone, std::align_val_t(alignment)))),
      data_(memory_.get() + zone) {
  std::memset(memory_.get(), static_cast<int>(zone_pattern), zone);
  std::memset(data_, static_cast<int>(fill), bytes_);
  std::memset(data_ + bytes_, static_cast<int>(zone_pattern), zone);
}

void GuardedBuffer::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t(alignment));
}

std::optional<std::ptrdiff_t> GuardedBuffer::violation() const {
  const std::byte* end = data_ + bytes_;
  auto changed = [](std::byte byte) { return byte != zone_pattern; };
  if (const std::byte* at = std::find_if(end, end + zone, changed); at != end + zone) return at - end;
  for (const std::byte* at = data_; at-- != memory_.get();)
    if (changed(*at)) return at - data_;
  return std::nullopt;
}

ErrorSink::ErrorSink() : error_{sizeof(fvlm_error), static_cast<uint32_t>(text_.size() - 1), text_.data()} {}

std::string ErrorSink::text() const {
  return printable({text_.data(), strnlen(text_.data(), text_.size())});
}

std::string dtype_name(fvlm_dtype dtype) {
  const char* code = dtype_code_name(dtype);
  return code && dtype.lanes == 1 ? fmt::format("{}{}", code, dtype.bits)
                                  : fmt::format("(code {}, {} bits, {} lanes)", dtype.code, dtype.bits, dtype.lanes);
}

std::string describe(const fvlm_tensor* tensor) {
  if (!tensor) return "null";
  std::string text = dtype_name(tensor->dtype) + " [";
  bool contiguous = true;
  int64_t expected = 1;
  for (int32_t i = tensor->ndim; i-- > 0;) {
    contiguous &= tensor->shape[i] == 1 || tensor->strides[i] == expected;
    expected *= tensor->shape[i];
  }
  for (int32_t i = 0; i < tensor->ndim; ++i) text += fmt::format("{}{}", i ? ", " : "", tensor->shape[i]);
  text += ']';
  if (!contiguous && expected > 0) {
    text += " strides [";
    for (int32_t i = 0; i < tensor->ndim; ++i) text += fmt::format("{}{}", i ? ", " : "", tensor->strides[i]);
    text += ']';
  }
  if (tensor->device.type == FVLM_CUDA) text += fmt::format(" cuda:{}", tensor->device.id);
  return text;
}

std::string status_name(fvlm_status status) {
  switch (status) {
  case FVLM_OK:
    return "FVLM_OK";
  case FVLM_ERROR_ARGUMENT:
    return "FVLM_ERROR_ARGUMENT";
  case FVLM_ERROR_UNSUPPORTED:
    return "FVLM_ERROR_UNSUPPORTED";
  case FVLM_ERROR_WORKSPACE:
    return "FVLM_ERROR_WORKSPACE";
  case FVLM_ERROR_DEVICE:
    return "FVLM_ERROR_DEVICE";
  case FVLM_ERROR_MEMORY:
    return "FVLM_ERROR_MEMORY";
  case FVLM_ERROR_INTERNAL:
    return "FVLM_ERROR_INTERNAL";
  case FVLM_ERROR_DATA:
    return "FVLM_ERROR_DATA";
  default:
    return fmt::format("status {}", status);
  }
}

namespace detail {

void fail_with_status(const std::string& plugin, std::string_view operation, fvlm_status status, const ErrorSink& sink,
                      const std::string& shapes) {
  std::string words = sink.text();
  if (words.empty()) words = "(no reason given)";
  const std::string what = fmt::format("{}: {}", status_name(status), words);
  if (status != FVLM_ERROR_UNSUPPORTED) fail(plugin, operation, what, shapes);
  auto refused = failure<UnsupportedCall>(plugin, operation, what, shapes);
  refused.plugin = plugin;
  refused.words = words;
  throw refused;
}

void fail_with_exception(const std::string& plugin, std::string_view operation, const std::string& shapes) {
  fail(plugin, operation, "threw " + current_exception_text(), shapes);
}

struct GuardedArguments::Piece {
  std::string name;
  fvlm_tensor* original; // NULL for the workspace, whose content is not copied back
  fvlm_tensor copy;      // what the plugin gets
  GuardedBuffer buffer;
  std::vector<std::byte> before; // the content before the call, to check the gaps of a strided view
};

GuardedArguments::GuardedArguments(const std::string& plugin, std::string_view operation)
    : plugin_(plugin), operation_(operation) {}
GuardedArguments::~GuardedArguments() = default;

fvlm_tensor* GuardedArguments::guard(const std::string& name, fvlm_tensor* tensor) {
  if (!tensor || tensor->device.type != FVLM_CPU || !tensor->data) return tensor;
  size_t bytes = extent_bytes(*tensor);
  auto piece = std::make_unique<Piece>(Piece{name, tensor, *tensor, GuardedBuffer(bytes), {}});
  const auto* content = static_cast<const std::byte*>(tensor->data);
  std::memcpy(piece->buffer.data(), content, bytes);
  piece->before.assign(content, content + bytes);
  piece->copy.data = piece->buffer.data();
  pieces_.push_back(std::move(piece));
  return &pieces_.back()->copy;
}

void* GuardedArguments::guard_workspace(void* workspace, uint64_t bytes, const fvlm_device& device) {
  if (!workspace || device.type != FVLM_CPU) return workspace;
  pieces_.push_back(std::make_unique<Piece>(Piece{"workspace", nullptr, {}, GuardedBuffer(bytes), {}}));
  return pieces_.back()->buffer.data();
}

void GuardedArguments::finish(const std::function<std::string()>& shapes) {
  for (const auto& piece : pieces_)
    if (auto offset = piece->buffer.violation())
      fail(plugin_, operation_, fmt::format("wrote outside '{}', {}", piece->name, place(*offset)), shapes());
  for (const auto& piece : pieces_) {
    if (!piece->original) continue;
    const auto* now = static_cast<const std::byte*>(piece->buffer.data());
    auto* home = static_cast<std::byte*>(piece->original->data);
    size_t item = item_bytes(*piece->original), bytes = piece->buffer.size();
    if (element_count(*piece->original) * item == bytes) { // no gaps
      std::memcpy(home, now, bytes);
      continue;
    }
    each_element(*piece->original, [&](size_t offset) {
      std::memcpy(home + offset, now + offset, item);
      std::memcpy(piece->before.data() + offset, now + offset, item);
    });
    // `before` now differs from the copy only if the plugin wrote to the gaps between the view's elements, which are
    // the memory of other tensors.
    auto differs = std::mismatch(piece->before.begin(), piece->before.end(), now);
    if (differs.first != piece->before.end())
      fail(plugin_, operation_,
           fmt::format("wrote between the rows of '{}', {} bytes after its beginning", piece->name,
                       differs.first - piece->before.begin()),
           shapes());
  }
}

} // namespace detail
} // namespace fvlm
