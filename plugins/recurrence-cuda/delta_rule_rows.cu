// delta_rule_rows.cu: the gated delta rule from row to row: the state forward, and its gradient backward.
//
// The columns of a state have nothing to do with each other, so that a block computes 32 of them. A warp keeps eight in
// registers from the segment's first row to its last one, four times eight keys a thread. q and k of 16 rows at a time
// are normalized by the block for all its threads. One row needs S^T k and S^T q at once, because with the error
// r = v - exp(g) S^T k the new state's reading is y = exp(g) S^T q + (k q) beta r.
//
// What decays is not the numbers but a factor of theirs, which is multiplied in when it gets small: a row then takes
// three instructions for each number instead of four.
#include "delta_rule.cuh"

namespace fvlm::plugins {
namespace {

constexpr int dim = delta_rule_dim, chunk = delta_rule_chunk;
constexpr int block_columns = 32, warps = 4, threads = warps * warp_size, batch = 16;
constexpr int own_columns = 4, own_keys = 8; // of a thread
static_assert(chunk % batch == 0 && block_columns == warps * 2 * own_columns && dim == warp_size / 2 * own_keys);

struct RowBatch {
  alignas(16) float q[batch][dim], k[batch][dim];
  alignas(16) float column[batch][block_columns]; // v, or d_y
  float result[batch][block_columns];
  float decay[batch], rate[batch], q_by_k[batch];
};

__device__ float sum_over(float value, int lane_mask) {
  return value + __shfl_xor_sync(0xffffffffu, value, lane_mask);
}

// This thread's keys of a vector [dim] in shared memory: four successive ones of each half.
struct KeyPart {
  float at[own_keys];
  __device__ explicit KeyPart(const float* vector) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      *reinterpret_cast<float4*>(at + 4 * half) = *reinterpret_cast<const float4*>(vector + key(4 * half));
  }
  static __device__ int key(int index) {
    return index / 4 * (dim / 2) + static_cast<int>(threadIdx.x) % warp_size / 2 * 4 + index % 4;
  }
};

// This thread's part of a state, which is `factor` times these numbers.
class StatePart {
 public:
  static __device__ int column() { // the first of four, of the block's
    return static_cast<int>(threadIdx.x) / warp_size * 2 * own_columns +
           static_cast<int>(threadIdx.x) % 2 * own_columns;
  }
  // `wide`: four columns can be accessed at once.
  __device__ void load(const float* state, bool wide) {
#pragma unroll
    for (int i = 0; i < own_keys; ++i) {
      const float* const row = state + KeyPart::key(i) * dim;
      if (wide)
        read(row, at_[i]);
      else
        for (int j = 0; j < own_columns; ++j) at_[i][j] = row[j];
    }
  }
  template <class Type>
  __device__ void store(Type* state, bool wide = true) {
    apply_factor();
#pragma unroll
    for (int i = 0; i < own_keys; ++i) {
      Type* const row = state + KeyPart::key(i) * dim;
      if (wide)
        write(row, at_[i]);
      else
        for (int j = 0; j < own_columns; ++j) row[j] = Type(at_[i][j]);
    }
  }

  __device__ void decay(float by) {
    factor_ *= by;
    if (factor_ < smallest_factor) apply_factor(); // for all threads of a block at once
  }

  // The columns times a vector: four sums, which all threads get.
  __device__ void times(const KeyPart& k, float (&sums)[own_columns]) const {
    float all[own_columns];
    multiply(k, all);
    const float sum = sum_over(halves(all, 8, 4), 16); // of one column, by two bits of the lane's number
    gather(sum_over(sum, 2) * factor_, sums);
  }
  // The same of two vectors. Of the second product each thread gets one sum, of the column own_column().
  __device__ float times(const KeyPart& k, const KeyPart& q, float (&sums)[own_columns]) const {
    float of_k[own_columns], of_q[own_columns];
    multiply(k, of_k), multiply(q, of_q);
    const bool second = is_second();
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
      const float kept = second ? of_q[j] : of_k[j], sent = second ? of_k[j] : of_q[j];
      of_k[j] = kept + __shfl_xor_sync(0xffffffffu, sent, 16);
    }
    const float sum = sum_over(halves(of_k, 8, 4), 2) * factor_;
    gather(sum, sums);
    return sum;
  }
  // Whether this thread has sums of the second vector, and of which of its columns.
  static __device__ bool is_second() {
    return threadIdx.x & 16;
  }
  static __device__ int own_column() {
    return static_cast<int>(threadIdx.x) / 4 % own_columns;
  }
  // One thread for each of those sums.
  static __device__ bool is_writer() {
    return (threadIdx.x & 18) == 16;
  }

  // Adds the vector times a number for each column.
  __device__ void add(const KeyPart& k, const float (&by)[own_columns]) {
    const float inverse = __fdividef(1, factor_);
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
      const float scaled = by[j] * inverse;
#pragma unroll
      for (int i = 0; i < own_keys; ++i) at_[i][j] = fmaf(k.at[i], scaled, at_[i][j]);
    }
  }

 private:
  static constexpr float smallest_factor = 1e-9f;

  __device__ void apply_factor() {
#pragma unroll
    for (int i = 0; i < own_keys; ++i)
#pragma unroll
      for (int j = 0; j < own_columns; ++j) at_[i][j] *= factor_;
    factor_ = 1;
  }
  __device__ void multiply(const KeyPart& k, float (&sums)[own_columns]) const {
#pragma unroll
    for (int j = 0; j < own_columns; ++j) {
      sums[j] = 0;
#pragma unroll
      for (int i = 0; i < own_keys; ++i) sums[j] = fmaf(at_[i][j], k.at[i], sums[j]);
    }
  }
  // Of four sums the one whose number these two bits of the lane's number are, added up over both.
  static __device__ float halves(const float (&all)[own_columns], int high, int low) {
    const bool upper = threadIdx.x & high, odd = threadIdx.x & low;
    float two[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float kept = upper ? all[2 + j] : all[j], sent = upper ? all[j] : all[2 + j];
      two[j] = kept + __shfl_xor_sync(0xffffffffu, sent, high);
    }
    return (odd ? two[1] : two[0]) + __shfl_xor_sync(0xffffffffu, odd ? two[0] : two[1], low);
  }
  static __device__ void gather(float sum, float (&sums)[own_columns]) {
#pragma unroll
    for (int j = 0; j < own_columns; ++j)
      sums[j] = __shfl_sync(0xffffffffu, sum, 4 * j + static_cast<int>(threadIdx.x) % 2);
  }

  float at_[own_keys][own_columns]{};
  float factor_ = 1;
};

// Rows [first, first + count) of a head, for all threads of the block. `columns`: values, or gradients.
template <class Element>
__device__ void load_batch(const DeltaRule& rule, RowBatch& rows, int first, int count, int head, const Rows& columns,
                           int first_column) {
  const int key_head = head / (rule.heads / rule.key_heads), lane = threadIdx.x % warp_size,
            warp = static_cast<int>(threadIdx.x) / warp_size;
  const float factor = decay_factor<Element>(rule, head);
  constexpr int own_rows = batch / warps;
  WarpRow q[own_rows]{}, k[own_rows]{};
  float column[own_rows]{};
  RowGates gates[own_rows]{};
#pragma unroll
  for (int j = 0; j < own_rows; ++j) {
    const int i = warp + warps * j;
    if (i >= count) continue;
    q[j].load(query_row<Element>(rule, first + i, key_head));
    k[j].load(key_row<Element>(rule, first + i, key_head));
    column[j] = static_cast<float>(
        static_cast<const Element*>(columns.data)[(first + i) * columns.stride + first_column + lane]);
    gates[j] = row_gates<Element>(rule, first + i, head, factor);
  }
#pragma unroll
  for (int j = 0; j < own_rows; ++j) {
    const int i = warp + warps * j;
    if (i >= count) break;
    q[j].normalize(), k[j].normalize();
    q[j].scale(query_scale());
    const float q_by_k = q[j].dot(k[j]);
    q[j].store(rows.q[i]), k[j].store(rows.k[i]);
    rows.column[i][lane] = column[j];
    if (lane == 0) rows.decay[i] = expf(gates[j].log_decay), rows.rate[i] = gates[j].rate, rows.q_by_k[i] = q_by_k;
  }
}

// The state of the chunk that begins with a row of a segment, or contains it.
template <class Element>
__device__ Element* chunk_state(const DeltaRule& rule, void* states, const SegmentRows& own, int row) {
  return static_cast<Element*>(states) +
         (own.first_chunk + (row - own.first) / chunk) * static_cast<std::int64_t>(rule.heads) * dim * dim;
}

__device__ float select(const float (&values)[own_columns], int index) {
  return index < 2 ? (index == 0 ? values[0] : values[1]) : (index == 2 ? values[2] : values[3]);
}

template <class Element>
__device__ void store_columns(const Rows& to, const float (&from)[batch][block_columns], int first, int count,
                              int first_column) {
  for (int i = static_cast<int>(threadIdx.x) / warp_size; i < count; i += warps) {
    const int lane = threadIdx.x % warp_size;
    static_cast<Element*>(to.data)[(first + i) * to.stride + first_column + lane] = Element(from[i][lane]);
  }
}

// Block (segment, head, columns). The last segment is padding.
template <class Element, bool keeps>
__global__ void __launch_bounds__(threads) forward_rows(DeltaRule rule, DeltaRuleChunks chunks) {
  __shared__ RowBatch rows;
  const int segment = blockIdx.x, head = blockIdx.y, first_column = blockIdx.z * block_columns;
  const SegmentRows own = segment_rows(rule, segment);
  const int column = head * dim + first_column; // in rows of y
  if (segment == rule.segments) {
    for (int row = own.first + static_cast<int>(threadIdx.x) / warp_size; !keeps && row < own.end; row += warps)
      static_cast<Element*>(rule.y.data)[row * rule.y.stride + column + threadIdx.x % warp_size] = Element(0.0f);
    return;
  }
  if (own.first >= own.end) return;
  const std::int64_t of_head = static_cast<std::int64_t>(head) * dim * dim + first_column + StatePart::column();
  StatePart state;
  float* slot = nullptr;
  if (rule.states) {
    slot = rule.states + static_cast<std::int64_t>(rule.slots[segment]) * rule.heads * dim * dim + of_head;
    if (rule.starts[segment] == 0) state.load(slot, rule.wide_states);
  }
  const Rows errors{chunks.errors, static_cast<std::int64_t>(rule.heads) * dim};
  for (int first = own.first; first < own.end; first += batch) {
    const int count = min(batch, own.end - first);
    if (keeps && (first - own.first) % chunk == 0)
      state.store(chunk_state<Element>(rule, chunks.before, own, first) + of_head);
    load_batch<Element>(rule, rows, first, count, head, rule.qkv, 2 * rule.key_heads * dim + column);
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      const KeyPart k(rows.k[i]);
      const float decay = rows.decay[i], rate = rows.rate[i];
      float sums[own_columns], added[own_columns], values[own_columns];
      read(&rows.column[i][StatePart::column()], values);
      float read_by_q = 0;
      if constexpr (keeps)
        state.times(k, sums);
      else
        read_by_q = state.times(k, KeyPart(rows.q[i]), sums);
#pragma unroll
      for (int j = 0; j < own_columns; ++j) added[j] = rate * (values[j] -= decay * sums[j]);
      state.decay(decay);
      state.add(k, added);
      if (!StatePart::is_writer()) continue;
      const int which = StatePart::own_column();
      rows.result[i][StatePart::column() + which] =
          keeps ? select(values, which) : fmaf(decay, read_by_q, rows.q_by_k[i] * select(added, which));
    }
    __syncthreads();
    store_columns<Element>(keeps ? errors : rule.y, rows.result, first, count, column);
  }
  if (slot) state.store(slot, rule.wide_states);
}

// The gradient of the state from the last row to the first one. Of each row it needs d_y alone.
template <class Element>
__global__ void __launch_bounds__(threads) backward_rows(DeltaRule rule, DeltaRuleChunks chunks, Rows d_y) {
  __shared__ RowBatch rows;
  const int segment = blockIdx.x, head = blockIdx.y, first_column = blockIdx.z * block_columns;
  const SegmentRows own = segment_rows(rule, segment);
  if (own.first >= own.end) return;
  const int column = head * dim + first_column;
  const std::int64_t of_head = static_cast<std::int64_t>(head) * dim * dim + first_column + StatePart::column();
  const Rows d_added{chunks.d_added, static_cast<std::int64_t>(rule.heads) * dim};
  StatePart d_state; // behind the row
  for (int index = (own.end - own.first - 1) / batch; index >= 0; --index) {
    const int first = own.first + index * batch, count = min(batch, own.end - first);
    if ((index + 1) * batch % chunk == 0 || first + count == own.end)
      d_state.store(chunk_state<Element>(rule, chunks.d_behind, own, first) + of_head);
    load_batch<Element>(rule, rows, first, count, head, d_y, column);
    __syncthreads();
    for (int i = count - 1; i >= 0; --i) {
      const KeyPart k(rows.k[i]);
      float of_y[own_columns], of_added[own_columns], of_value[own_columns];
      read(&rows.column[i][StatePart::column()], of_y);
      d_state.times(k, of_added);
#pragma unroll
      for (int j = 0; j < own_columns; ++j) {
        of_added[j] = fmaf(rows.q_by_k[i], of_y[j], of_added[j]);
        of_value[j] = -rows.rate[i] * of_added[j];
      }
      d_state.add(KeyPart(rows.q[i]), of_y);
      d_state.add(k, of_value);
      d_state.decay(rows.decay[i]);
      if (StatePart::is_writer())
        rows.result[i][StatePart::column() + StatePart::own_column()] = select(of_added, StatePart::own_column());
    }
    __syncthreads();
    store_columns<Element>(d_added, rows.result, first, count, column);
  }
}

dim3 grid_of(const DeltaRule& rule, int segments) {
  return {static_cast<unsigned>(segments), static_cast<unsigned>(rule.heads), dim / block_columns};
}

} // namespace

void delta_rule_forward(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks* chunks) {
  if (rule.rows == 0) return;
  sdk::dispatch<float, BFloat16, Half>(rule.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    const dim3 grid = grid_of(rule, rule.segments + 1);
    if (chunks)
      forward_rows<Element, true><<<grid, threads, 0, stream>>>(rule, *chunks);
    else
      forward_rows<Element, false><<<grid, threads, 0, stream>>>(rule, {});
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

void delta_rule_backward_rows(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                              const Rows& d_y) {
  sdk::dispatch<float, BFloat16, Half>(rule.dtype, [&](auto element) {
    using Element = typename decltype(element)::type;
    backward_rows<Element><<<grid_of(rule, rule.segments), threads, 0, stream>>>(rule, chunks, d_y);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
