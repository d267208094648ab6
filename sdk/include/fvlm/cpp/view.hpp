// fvlm/cpp/view.hpp: View, a tensor of known element type and rank; Workspace, a bump allocator over a call's
// workspace.
#ifndef FVLM_CPP_VIEW_HPP
#define FVLM_CPP_VIEW_HPP

#include <fvlm/cpp/number.hpp>

FVLM_SDK_BEGIN

// View<const float, 2> x(arguments.x): inputs are const. It may point to GPU memory and be passed to a kernel.
template <class Element, int rank>
class View {
  using Tensor = std::conditional_t<std::is_const_v<Element>, const fvlm_tensor, fvlm_tensor>;

 public:
  View() = default; // empty: `View<const T, 1> bias; if (arguments.bias) bias = View<const T, 1>(arguments.bias);`

  explicit View(Tensor* tensor, const char* name = "a tensor") {
    if (!tensor) throw Failure(FVLM_ERROR_ARGUMENT, "%s is NULL", name);
    if (tensor->dtype != dtype_of<Element> || tensor->ndim != rank) {
      throw Failure(FVLM_ERROR_ARGUMENT, "%s: expected %s of rank %d but got %s of rank %d", name,
                    name_of(dtype_of<Element>), rank, name_of(tensor->dtype), static_cast<int>(tensor->ndim));
    }
    for (int d = 0; d < rank; ++d) {
      shape_[d] = tensor->shape[d];
      strides_[d] = tensor->strides[d];
    }
    data_ = static_cast<Element*>(tensor->data);
    if (!data_ && count() > 0) throw Failure(FVLM_ERROR_ARGUMENT, "%s: data is NULL", name);
  }

  template <class... Index>
  FVLM_BOTH Element& operator()(Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index per dimension");
    const std::int64_t at[] = {static_cast<std::int64_t>(index)...};
    std::int64_t offset = 0;
    for (int d = 0; d < rank; ++d) offset += at[d] * strides_[d];
    return data_[offset];
  }

  FVLM_BOTH Element* data() const { return data_; }
  FVLM_BOTH std::int64_t size(int dimension) const { return shape_[dimension]; }
  FVLM_BOTH std::int64_t stride(int dimension) const { return strides_[dimension]; }
  FVLM_BOTH Element* row(std::int64_t index) const { return data_ + index * strides_[0]; }
  FVLM_BOTH explicit operator bool() const { return data_ != nullptr; }

  FVLM_BOTH std::int64_t count() const {
    std::int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= shape_[d];
    return product;
  }
  // Whether the last dimension is contiguous, so that row(i)[j] is element j.
  bool rows_contiguous() const { return shape_[rank - 1] <= 1 || strides_[rank - 1] == 1; }
  bool contiguous() const {
    std::int64_t expected = 1;
    for (int d = rank - 1; d >= 0; --d) {
      if (shape_[d] != 1 && strides_[d] != expected) return count() == 0;
      expected *= shape_[d];
    }
    return true;
  }

 private:
  Element* data_ = nullptr;
  std::int64_t shape_[rank] = {};
  std::int64_t strides_[rank] = {};
};

template <class Element>
class Span {
 public:
  Span() = default;
  FVLM_BOTH Span(Element* data, std::size_t size) : data_(data), size_(size) {}
  FVLM_BOTH Element& operator[](std::size_t index) const { return data_[index]; }
  FVLM_BOTH Element* data() const { return data_; }
  FVLM_BOTH std::size_t size() const { return size_; }
  FVLM_BOTH Element* begin() const { return data_; }
  FVLM_BOTH Element* end() const { return data_ + size_; }

 private:
  Element* data_ = nullptr;
  std::size_t size_ = 0;
};

// Allocates aligned pieces of call.workspace. Constructed without a call it only counts, so that one function defines
// the layout both for requirements() (`requirements.forward_workspace = space.used()`) and for the call.
class Workspace {
 public:
  static constexpr std::size_t alignment = 256;

  Workspace() = default;
  explicit Workspace(const fvlm_call& call)
      : base_(static_cast<char*>(call.workspace)), capacity_(call.workspace_size), counting_(false) {}

  template <class Element>
  Span<Element> take(std::int64_t count) {
    const std::size_t bytes =
        (static_cast<std::size_t>(count) * sizeof(Element) + alignment - 1) / alignment * alignment;
    const std::size_t begin = used_;
    used_ += bytes;
    if (counting_) return {nullptr, static_cast<std::size_t>(count)};
    if (used_ > capacity_ || (!base_ && bytes > 0)) {
      throw Failure(FVLM_ERROR_WORKSPACE, "expected a workspace of at least %zu bytes but got %zu", used_, capacity_);
    }
    return {bytes ? reinterpret_cast<Element*>(base_ + begin) : nullptr, static_cast<std::size_t>(count)};
  }
  std::size_t used() const { return used_; }

 private:
  char* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  bool counting_ = true;
};

FVLM_SDK_END

#endif
