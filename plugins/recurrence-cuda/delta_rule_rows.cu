// delta_rule_rows.cu: the gated delta rule from row to row: the state forward, and its gradient backward.
//
// The columns of a state have nothing to do with each other, so that a block computes 32 of them, and each thread keeps
// 32 numbers of one column in registers from the segment's first row to its last one. q and k of 16 rows at a time are
// normalized by the block for all its threads. One row needs S^T k and S^T q at once, because with the error
// r = v - exp(g) S^T k the new state's reading is y = exp(g) S^T q + (k q) beta r.
#include "delta_rule.cuh"

namespace fvlm::plugins {
namespace {

constexpr int dim = delta_rule_dim, chunk = delta_rule_chunk;
constexpr int block_columns = 32, warps = 4, threads = warps * warp_size, batch = 16;
constexpr int own_keys = 32; // of a thread: four successive ones of every 16
static_assert(chunk % batch == 0);

struct RowBatch {
  alignas(16) float q[batch][dim], k[batch][dim];
  float column[batch][block_columns];  // v, or d_y
  float result[batch][block_columns];  // y
  float decay[batch], rate[batch], q_by_k[batch];
};

// This thread's part of a state: keys 16 i + 4 group + j of its column.
struct StatePart {
  float at[own_keys];
  static __device__ int key(int index) { return index / 4 * 16 + threadIdx.x % 4 * 4 + index % 4; }
  static __device__ int column() { return static_cast<int>(threadIdx.x) / 4; } // of the block's

  template <class Type>
  __device__ void load(const Type* state) {
#pragma unroll
    for (int i = 0; i < own_keys; ++i) at[i] = static_cast<float>(state[key(i) * dim]);
  }
  template <class Type>
  __device__ void store(Type* state) const {
#pragma unroll
    for (int i = 0; i < own_keys; ++i) state[key(i) * dim] = Type(at[i]);
  }
  // x: [dim] in shared memory.
  static __device__ float4 four(const float* x, int i) {
    return *reinterpret_cast<const float4*>(x + 16 * i + threadIdx.x % 4 * 4);
  }
  // The column times one vector, or two.
  __device__ float times(const float* x) const {
    float sum[4] = {};
#pragma unroll
    for (int i = 0; i < own_keys / 4; ++i) {
      const float4 f = four(x, i);
      sum[0] = fmaf(at[4 * i], f.x, sum[0]);
      sum[1] = fmaf(at[4 * i + 1], f.y, sum[1]);
      sum[2] = fmaf(at[4 * i + 2], f.z, sum[2]);
      sum[3] = fmaf(at[4 * i + 3], f.w, sum[3]);
    }
    return over_keys(sum[0] + sum[1] + (sum[2] + sum[3]));
  }
  // Becomes decay (S + x factor_x + y factor_y).
  __device__ void add(const float* x, float factor_x, const float* y, float factor_y, float decay) {
#pragma unroll
    for (int i = 0; i < own_keys / 4; ++i) {
      const float4 f = four(x, i), g = four(y, i);
      at[4 * i] = fmaf(g.x, factor_y, fmaf(f.x, factor_x, at[4 * i])) * decay;
      at[4 * i + 1] = fmaf(g.y, factor_y, fmaf(f.y, factor_x, at[4 * i + 1])) * decay;
      at[4 * i + 2] = fmaf(g.z, factor_y, fmaf(f.z, factor_x, at[4 * i + 2])) * decay;
      at[4 * i + 3] = fmaf(g.w, factor_y, fmaf(f.w, factor_x, at[4 * i + 3])) * decay;
    }
  }
  // Becomes decay S + x factor.
  __device__ void add(const float* x, float factor, float decay) {
#pragma unroll
    for (int i = 0; i < own_keys / 4; ++i) {
      const float4 f = four(x, i);
      at[4 * i] = fmaf(f.x, factor, at[4 * i] * decay);
      at[4 * i + 1] = fmaf(f.y, factor, at[4 * i + 1] * decay);
      at[4 * i + 2] = fmaf(f.z, factor, at[4 * i + 2] * decay);
      at[4 * i + 3] = fmaf(f.w, factor, at[4 * i + 3] * decay);
    }
  }

 private:
  static __device__ float over_keys(float sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }
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
    column[j] = static_cast<float>(static_cast<const Element*>(
        columns.data)[(first + i) * columns.stride + first_column + lane]);
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
    if (lane == 0)
      rows.decay[i] = expf(gates[j].log_decay), rows.rate[i] = gates[j].rate, rows.q_by_k[i] = q_by_k;
  }
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
  StatePart state{};
  float* slot = nullptr;
  if (rule.states) {
    slot = rule.states + static_cast<std::int64_t>(rule.slots[segment]) * rule.heads * dim * dim + of_head;
    if (rule.starts[segment] == 0) state.load(slot);
  }
  const Rows errors{chunks.errors, static_cast<std::int64_t>(rule.heads) * dim};
  const Rows& to = keeps ? errors : rule.y;
  for (int first = own.first; first < own.end; first += batch) {
    const int count = min(batch, own.end - first);
    if (keeps && (first - own.first) % chunk == 0)
      state.store(static_cast<Element*>(chunks.before) +
                  (own.first_chunk + (first - own.first) / chunk) * static_cast<std::int64_t>(rule.heads) * dim * dim +
                  of_head);
    load_batch<Element>(rule, rows, first, count, head, rule.qkv, 2 * rule.key_heads * dim + column);
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      const float decay = rows.decay[i];
      const float error = fmaf(-decay, state.times(rows.k[i]), rows.column[i][StatePart::column()]);
      const float added = rows.rate[i] * error;
      const float result = keeps ? error : fmaf(decay, state.times(rows.q[i]), rows.q_by_k[i] * added);
      state.add(rows.k[i], added, decay);
      if (threadIdx.x % 4 == 0) rows.result[i][StatePart::column()] = result;
    }
    __syncthreads();
    store_columns<Element>(to, rows.result, first, count, column);
  }
  if (slot) state.store(slot);
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
  StatePart d_state{}; // behind the row
  for (int batch_index = (own.end - own.first - 1) / batch; batch_index >= 0; --batch_index) {
    const int first = own.first + batch_index * batch, count = min(batch, own.end - first);
    if ((batch_index + 1) * batch % chunk == 0 || first + count == own.end)
      d_state.store(static_cast<Element*>(chunks.d_behind) +
                    (own.first_chunk + batch_index * batch / chunk) * static_cast<std::int64_t>(rule.heads) * dim *
                        dim +
                    of_head);
    load_batch<Element>(rule, rows, first, count, head, d_y, column);
    __syncthreads();
    for (int i = count - 1; i >= 0; --i) {
      const float of_y = rows.column[i][StatePart::column()];
      const float of_added = fmaf(rows.q_by_k[i], of_y, d_state.times(rows.k[i]));
      d_state.add(rows.q[i], of_y, rows.k[i], -rows.rate[i] * of_added, rows.decay[i]);
      if (threadIdx.x % 4 == 0) rows.result[i][StatePart::column()] = of_added;
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
