// delta_rule_chunks.cu: the gradients of the gated delta rule's operands, chunk by chunk, by tensor cores.
//
// Rows t of a chunk have decays c_t summed since its begin. With the state S before the chunk, the gradient dS of the
// state after it, errors r, u = beta r, and the gradients du of u from delta_rule_rows.cu, dv = beta du,
//
//   reads[t][s]  = exp(c_t - c_s) dy_t u_s for s <= t,    errors[t][s] = -exp(c_t - c_s) dv_t u_s for s < t
//   dq_t = exp(c_t) S dy_t + sum over s of reads[t][s] k_s
//   dk_t = exp(c_end - c_t) dS u_t + sum over s of reads[s][t] q_s + errors[s][t] k_s        of what is written at k_t,
//        - exp(c_t) S dv_t         + sum over s of errors[t][s] k_s                          of what is read at k_t.
//
// A decay's gradient needs no product of its own: scaling S_t by a number is the same as scaling q_t, and all that is
// read at k_t, and dividing what is written, so that the gradient of c_t is q_t dq_t plus k_t times the second part of
// dk_t, less k_t times the first.
#include "common/cuda_mma.cuh"
#include "delta_rule.cuh"

namespace fvlm::plugins {

void delta_rule_backward_rows(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                              const Rows& d_y);

namespace {

constexpr int dim = delta_rule_dim, rows = delta_rule_chunk;
constexpr int warps = 8, threads = warps * warp_size, own_rows = rows / warps;
constexpr int row_warps = rows / 16, column_warps = warps / row_warps, columns = dim / column_warps;
constexpr int pitch = dim + 8, square_pitch = rows + 8; // so that ldmatrix finds eight rows in different banks
static_assert(rows == warp_size && column_warps == 4);

template <int columns>
using Tiles = float[columns / 8][4]; // of a warp: 16 rows of a matrix
using Sum = Tiles<columns>;

// sum += a b. `a` lies in memory as [rows, depth], or [depth, rows] where it is transposed; b as [depth, columns], or
// [columns, depth] where it is transposed.
template <class Element, int depth, bool transposed_a, bool transposed_b, int tiles>
__device__ void multiply(float (&sum)[tiles][4], const Element* a, int a_pitch, const Element* b, int b_pitch) {
  const int lane = threadIdx.x % warp_size, row = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < depth; step += 16) {
    std::uint32_t of_a[4];
    const Element* const from_a =
        transposed_a ? a + (step + high + row) * a_pitch + low : a + (low + row) * a_pitch + step + high;
    load_matrices<transposed_a>(of_a, shared_address(from_a));
#pragma unroll
    for (int tile = 0; tile < tiles; tile += 2) {
      std::uint32_t of_b[4];
      const Element* const from_b = transposed_b ? b + (8 * tile + high + row) * b_pitch + step + low
                                                 : b + (step + low + row) * b_pitch + 8 * tile + high;
      load_matrices<!transposed_b>(of_b, shared_address(from_b));
      mma_16x8x16<Element>(sum[tile], of_a, of_b[0], of_b[1]);
      mma_16x8x16<Element>(sum[tile + 1], of_a, of_b[2], of_b[3]);
    }
  }
}

template <class Element>
struct Chunk {
  alignas(16) Element q[rows][pitch], k[rows][pitch], d_y[rows][pitch];
  alignas(16) Element added[rows][pitch], d_value[rows][pitch];              // u and dv
  alignas(16) Element state[dim][pitch];                                     // that before, then the gradient
  alignas(16) Element reads[rows][square_pitch], errors[rows][square_pitch]; // as above
  float q_factor[rows], k_factor[rows];                                      // 1 / the length of each
  float decay[rows], step[rows], rate[rows], d_rate[rows];                   // decay: c
  float dots[3][column_warps][rows];
  float q_dot[rows], k_dot[rows]; // q dq and k dk, of all heads
  float of_end[warps];            // sums to the gradient of c_end
};

// One chunk of one key head and the heads of values that it serves.
template <class Element>
class ChunkGradients {
 public:
  __device__ ChunkGradients(Chunk<Element>& chunk, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                            const DeltaRuleGradients& gradients, int number, const SegmentRows& own)
      : chunk_(chunk), rule_(rule), chunks_(chunks), gradients_(gradients), number_(number),
        first_(own.first + (number - own.first_chunk) * rows), count_(min(rows, own.end - first_)),
        is_first_(first_ == own.first), is_last_(first_ + count_ == own.end) {}

  __device__ void run(int key_head) {
    load_keys(key_head);
    Sum d_q{}, d_k{};
    const int group = rule_.heads / rule_.key_heads;
    for (int head = key_head * group; head < (key_head + 1) * group; ++head) add_head(d_q, d_k, head);
    __syncthreads();
    store(d_q, chunk_.q, chunk_.q_dot, chunk_.q_factor, query_scale(), key_head);
    store(d_k, chunk_.k, chunk_.k_dot, chunk_.k_factor, 1, rule_.key_heads + key_head);
  }

 private:
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / warp_size; }
  static __device__ int lane() { return static_cast<int>(threadIdx.x) % warp_size; }
  static __device__ int first_row() { return warp() % row_warps * 16; }
  static __device__ int first_column() { return warp() / row_warps * columns; }
  // Of element i of a thread's sums.
  static __device__ int row_of(int i) { return first_row() + lane() / 4 + i / 2 * 8; }
  static __device__ int column_of(int tile, int i) { return 8 * tile + lane() % 4 * 2 + i % 2; }

  __device__ void load_keys(int key_head) {
    WarpRow q[own_rows]{}, k[own_rows]{};
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      const int row = warp() + warps * i;
      if (row >= count_) continue;
      q[i].load(query_row<Element>(rule_, first_ + row, key_head));
      k[i].load(key_row<Element>(rule_, first_ + row, key_head));
    }
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      const int row = warp() + warps * i;
      const float of_q = q[i].normalize(), of_k = k[i].normalize();
      q[i].scale(query_scale());
      q[i].store(chunk_.q[row]), k[i].store(chunk_.k[row]);
      if (lane() == 0) chunk_.q_factor[row] = of_q, chunk_.k_factor[row] = of_k;
    }
    if (warp() == 0) chunk_.q_dot[lane()] = chunk_.k_dot[lane()] = 0;
  }

  // By one warp: gates and the sums of decays.
  __device__ void load_gates(int head) {
    const RowGates gates = lane() < count_
                               ? row_gates<Element>(rule_, first_ + lane(), head, decay_factor<Element>(rule_, head))
                               : RowGates{};
    float sum = gates.log_decay;
#pragma unroll
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane() >= distance) sum += other;
    }
    chunk_.decay[lane()] = sum, chunk_.step[lane()] = gates.step, chunk_.rate[lane()] = gates.rate;
  }

  __device__ void load_rows(int head) {
    const std::int64_t width = static_cast<std::int64_t>(rule_.heads) * dim, column = head * dim;
    WarpRow error[own_rows]{}, d_added[own_rows]{}, d_y[own_rows]{};
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      const std::int64_t row = warp() + warps * i, at = first_ + row;
      if (row >= count_) continue;
      error[i].load(static_cast<const Element*>(chunks_.errors) + at * width + column);
      d_added[i].load(static_cast<const Element*>(chunks_.d_added) + at * width + column);
      d_y[i].load(static_cast<const Element*>(gradients_.d_y.data) + at * gradients_.d_y.stride + column);
    }
    __syncthreads(); // the gates are there
#pragma unroll
    for (int i = 0; i < own_rows; ++i) {
      const int row = warp() + warps * i;
      const float d_rate = error[i].dot(d_added[i]), rate = chunk_.rate[row];
      error[i].scale(rate), d_added[i].scale(rate);
      error[i].store(chunk_.added[row]), d_added[i].store(chunk_.d_value[row]), d_y[i].store(chunk_.d_y[row]);
      if (row < count_) d_added[i].store(row_of_gradient(row, 2 * rule_.key_heads + head));
      if (lane() == 0) chunk_.d_rate[row] = d_rate;
    }
  }

  __device__ Element* row_of_gradient(int row, int head) const {
    return static_cast<Element*>(gradients_.d_qkv.data) + (first_ + row) * gradients_.d_qkv.stride + head * dim;
  }
  __device__ const Element* state_of(const void* states, int number, int head) const {
    return static_cast<const Element*>(states) + (static_cast<std::int64_t>(number) * rule_.heads + head) * dim * dim;
  }

  template <class Each>
  __device__ void load_state(const Element* from, const Each& each) {
    constexpr int size = pack_size<Element>, packs = dim / size;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < dim * packs; i += threads) {
      const int row = i / packs, column = i % packs * size;
      Pack<Element, size> pack;
      pack.load(from + row * dim + column);
      each(pack, row * dim + column);
      pack.store(&chunk_.state[row][column]);
    }
  }

  // Half of the warps make reads, the others errors.
  __device__ void make_squares() {
    const bool errors = warp() / row_warps % 2 != 0;
    const int column = warp() / (2 * row_warps) * 16;
    Tiles<16> sum{};
    multiply<Element, dim, false, true>(sum, (errors ? chunk_.d_value : chunk_.d_y)[first_row()], pitch,
                                        chunk_.added[column], pitch);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = row_of(i), s = column + column_of(tile, i);
        const float between = s < t || (s == t && !errors) ? expf(chunk_.decay[t] - chunk_.decay[s]) : 0;
        const float product = errors ? -sum[tile][i] : sum[tile][i];
        (errors ? chunk_.errors : chunk_.reads)[t][s] = Element(product * between);
      }
    }
  }

  // Rows of sums times exp of something of the row.
  template <class Exponent>
  __device__ void scale(Sum& sum, float factor, const Exponent& exponent) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = factor * expf(exponent(row_of(2 * half)));
#pragma unroll
      for (int tile = 0; tile < columns / 8; ++tile) sum[tile][2 * half] *= by, sum[tile][2 * half + 1] *= by;
    }
  }

  // Each row's product with that of q or k goes to chunk_.dots[which].
  __device__ void dot(int which, const Sum& sum, const Element (&vectors)[rows][pitch]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(2 * half);
      float total = 0;
#pragma unroll
      for (int tile = 0; tile < columns / 8; ++tile) {
        float pair[2];
        read(&vectors[row][first_column() + column_of(tile, 0)], pair);
        total = fmaf(sum[tile][2 * half], pair[0], fmaf(sum[tile][2 * half + 1], pair[1], total));
      }
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      if (lane() % 4 == 0) chunk_.dots[which][warp() / row_warps][row] = total;
    }
  }

  static __device__ void add(Sum& to, const Sum& sum) {
#pragma unroll
    for (int tile = 0; tile < columns / 8; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[tile][i] += sum[tile][i];
  }

  __device__ void add_head(Sum& d_q, Sum& d_k, int head) {
    __syncthreads(); // the head before has been read
    if (warp() == 0) load_gates(head);
    if (!is_first_) load_state(state_of(chunks_.before, number_, head), [](const auto&, int) {});
    load_rows(head);
    __syncthreads();
    make_squares();
    __syncthreads();
    const int row = first_row(), column = first_column();
    const Element* const state = chunk_.state[column];
    const auto since_begin = [&](int of_row) { return chunk_.decay[of_row]; };
    const auto until_end = [&](int of_row) { return chunk_.decay[rows - 1] - chunk_.decay[of_row]; };
    Sum sum{};
    if (!is_first_) multiply<Element, dim, false, true>(sum, chunk_.d_y[row], pitch, state, pitch);
    scale(sum, 1, since_begin);
    multiply<Element, rows, false, false>(sum, chunk_.reads[row], square_pitch, &chunk_.k[0][column], pitch);
    dot(0, sum, chunk_.q);
    add(d_q, sum);
    clear(sum);
    if (!is_first_) multiply<Element, dim, false, true>(sum, chunk_.d_value[row], pitch, state, pitch);
    scale(sum, -1, since_begin);
    multiply<Element, rows, false, false>(sum, chunk_.errors[row], square_pitch, &chunk_.k[0][column], pitch);
    dot(1, sum, chunk_.k);
    add(d_k, sum);
    clear(sum);
    load_d_state(head);
    if (!is_last_) multiply<Element, dim, false, true>(sum, chunk_.added[row], pitch, state, pitch);
    scale(sum, 1, until_end);
    multiply<Element, rows, true, false>(sum, &chunk_.reads[0][row], square_pitch, &chunk_.q[0][column], pitch);
    multiply<Element, rows, true, false>(sum, &chunk_.errors[0][row], square_pitch, &chunk_.k[0][column], pitch);
    dot(2, sum, chunk_.k);
    add(d_k, sum);
    __syncthreads();
    if (warp() == 0) store_gates(head);
  }

  static __device__ void clear(Sum& sum) {
#pragma unroll
    for (int tile = 0; tile < columns / 8; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[tile][i] = 0;
  }

  // The gradient of the state after the chunk, and its product with that state, which is the gradient of c_end.
  __device__ void load_d_state(int head) {
    if (is_last_) {
      if (lane() == 0) chunk_.of_end[warp()] = 0;
      return;
    }
    __syncthreads(); // the state before has been read
    const Element* const after = state_of(chunks_.before, number_ + 1, head);
    float total = 0;
    load_state(state_of(chunks_.d_behind, number_, head), [&](const auto& pack, int at) {
      constexpr int size = pack_size<Element>;
      float d[size], s[size];
      pack.widen(d);
      read(after + at, s);
#pragma unroll
      for (int i = 0; i < size; ++i) total = fmaf(d[i], s[i], total);
    });
    total = warp_sum(total);
    if (lane() == 0) chunk_.of_end[warp()] = total;
    __syncthreads();
  }

  // Of all parts of a row's product.
  __device__ float whole_dot(int which) const {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < column_warps; ++part) sum += chunk_.dots[which][part][lane()];
    return sum;
  }

  // By one warp: gradients of the gates of all rows, and of what all rows share.
  __device__ void store_gates(int head) {
    const int row = lane();
    const float q = whole_dot(0), read = whole_dot(1), written = whole_dot(2);
    chunk_.q_dot[row] += q, chunk_.k_dot[row] += read + written;
    float d_decay = q + read - written; // then of the row's own decay, which is in those of all rows behind it
#pragma unroll
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const float other = __shfl_down_sync(0xffffffffu, d_decay, distance);
      if (row + distance < warp_size) d_decay += other;
    }
    d_decay += warp_sum(row < warps ? chunk_.of_end[row] : 0);
    const float own = chunk_.decay[row] - (row > 0 ? chunk_.decay[row - 1] : 0), rate = chunk_.rate[row];
    const float d_step =
        row < count_ ? d_decay * decay_factor<Element>(rule_, head) / (1 + expf(-chunk_.step[row])) : 0;
    if (row < count_) {
      Element* const to = static_cast<Element*>(gradients_.d_gates.data) + (first_ + row) * gradients_.d_gates.stride;
      to[head] = Element(chunk_.d_rate[row] * rate * (1 - rate));
      to[rule_.heads + head] = Element(d_step);
    }
    const float of_decay = warp_sum(d_decay * own), of_bias = warp_sum(d_step); // own: 0 where there is no row
    if (row != 0) return;
    const std::int64_t at = static_cast<std::int64_t>(number_) * rule_.heads + head;
    chunks_.sums[at] = of_decay;
    chunks_.sums[DeltaRuleChunks::count(rule_.rows, rule_.segments) * rule_.heads + at] = of_bias;
  }

  // The gradient before rows were normalized, and multiplied by `scale`.
  __device__ void store(const Sum& sum, const Element (&vectors)[rows][pitch], const float (&dots)[rows],
                        const float (&factors)[rows], float scale, int head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(2 * half);
      if (row >= count_) continue;
      const float along = dots[row] / (scale * scale), factor = factors[row] * scale;
      Element* const to = row_of_gradient(row, head) + first_column();
#pragma unroll
      for (int tile = 0; tile < columns / 8; ++tile) {
        float pair[2];
        read(&vectors[row][first_column() + column_of(tile, 0)], pair);
#pragma unroll
        for (int i = 0; i < 2; ++i)
          to[column_of(tile, i)] = Element(factor * fmaf(-along, pair[i], sum[tile][2 * half + i]));
      }
    }
  }

  Chunk<Element>& chunk_;
  const DeltaRule& rule_;
  const DeltaRuleChunks& chunks_;
  const DeltaRuleGradients& gradients_;
  int number_, first_, count_;
  bool is_first_, is_last_; // of its segment
};

template <class Element>
__device__ void clear_padding(const DeltaRule& rule, const DeltaRuleGradients& gradients, int key_head) {
  const int group = rule.heads / rule.key_heads;
  const SegmentRows padding = segment_rows(rule, rule.segments);
  for (int row = padding.first + static_cast<int>(threadIdx.x) / warp_size; row < padding.end; row += warps) {
    Element* const of_heads = static_cast<Element*>(gradients.d_qkv.data) + row * gradients.d_qkv.stride;
    WarpRow{}.store(of_heads + key_head * dim);
    WarpRow{}.store(of_heads + (rule.key_heads + key_head) * dim);
    Element* const of_gates = static_cast<Element*>(gradients.d_gates.data) + row * gradients.d_gates.stride;
    for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
      WarpRow{}.store(of_heads + (2 * rule.key_heads + head) * dim);
      if (threadIdx.x % warp_size < 2) of_gates[threadIdx.x % warp_size * rule.heads + head] = Element(0.0f);
    }
  }
}

// Block (number of the chunk, key head). The last number is padding.
template <class Element>
__global__ void __launch_bounds__(threads, 2)
    chunk_gradients(DeltaRule rule, DeltaRuleChunks chunks, DeltaRuleGradients gradients) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int number = blockIdx.x, key_head = blockIdx.y, group = rule.heads / rule.key_heads;
  if (blockIdx.x + 1 == gridDim.x) return clear_padding<Element>(rule, gradients, key_head);
  int segment = 0; // the last one that begins at this number or before it
  for (int end = rule.segments; end - segment > 1;) {
    const int middle = (segment + end) / 2;
    (segment_rows(rule, middle).first_chunk <= number ? segment : end) = middle;
  }
  const SegmentRows own = segment_rows(rule, segment);
  if (number < own.first_chunk || own.first + (number - own.first_chunk) * rows >= own.end) {
    const std::int64_t of_bias = DeltaRuleChunks::count(rule.rows, rule.segments) * rule.heads,
                       at = static_cast<std::int64_t>(number) * rule.heads + key_head * group;
    if (static_cast<int>(threadIdx.x) < group)
      chunks.sums[at + threadIdx.x] = chunks.sums[of_bias + at + threadIdx.x] = 0;
    return;
  }
  ChunkGradients<Element>(*reinterpret_cast<Chunk<Element>*>(memory), rule, chunks, gradients, number, own)
      .run(key_head);
}

// Block (head, which of the two parameters).
template <class Gradient>
__global__ void __launch_bounds__(threads)
    sum_chunks(DeltaRule rule, DeltaRuleChunks chunks, DeltaRuleGradients gradients, std::int64_t count) {
  auto* const out = static_cast<Gradient*>(blockIdx.y == 0 ? gradients.d_log_decay : gradients.d_step_bias);
  if (!out) return;
  const float* const from = chunks.sums + blockIdx.y * count * rule.heads + blockIdx.x;
  float total = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += threads) total += from[i * rule.heads];
  total = GroupSum<threads>()(total);
  if (threadIdx.x != 0) return;
  if (gradients.accumulate) total += static_cast<float>(out[blockIdx.x]);
  out[blockIdx.x] = Gradient(total);
}

template <class Element>
void launch_chunks(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                   const DeltaRuleGradients& gradients, std::int64_t count) {
  constexpr auto kernel = chunk_gradients<Element>;
  constexpr int bytes = sizeof(Chunk<Element>);
  sdk::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
  const dim3 grid(static_cast<unsigned>(count + 1), static_cast<unsigned>(rule.key_heads));
  kernel<<<grid, threads, bytes, stream>>>(rule, chunks, gradients);
}

} // namespace

void delta_rule_backward(cudaStream_t stream, const DeltaRule& rule, const DeltaRuleChunks& chunks,
                         const DeltaRuleGradients& gradients) {
  const std::int64_t count = DeltaRuleChunks::count(rule.rows, rule.segments);
  delta_rule_backward_rows(stream, rule, chunks, gradients.d_y);
  sdk::dispatch<BFloat16, Half>(rule.dtype, [&](auto element) {
    launch_chunks<typename decltype(element)::type>(stream, rule, chunks, gradients, count);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
  sdk::dispatch<float, BFloat16, Half>(gradients.gradient, [&](auto element) {
    sum_chunks<typename decltype(element)::type>
        <<<dim3(static_cast<unsigned>(rule.heads), 2), threads, 0, stream>>>(rule, chunks, gradients, count);
  });
  sdk::check_cuda(cudaGetLastError(), "launch");
}

} // namespace fvlm::plugins
