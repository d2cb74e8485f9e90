// Sinkhorn balancing of small matrices: rows and columns of logarithms are normalized in turn.
//
// Notation: a step is r' = r - log sum exp(r) over the live entries of a row or column; all other
// entries stay at kLogZero. Its gradient is dr = dr' - exp(r') sum dr'.
// In a causal column, row u subtracts c_u = log sum exp(r) over rows v <= u. The gradient is then
// dr_v = dr'_v - exp(r'_v) t_v with t_v = sum_u>=v dr'_u exp(c_v - c_u). With the next live row w,
// t_v = dr'_v + exp(c_v - c_w) t_w.

#include "threads.h"
#include "vector.h"

namespace rifflemix::balance {

// Replaces log(0). It is finite, so differences are never NaN.
constexpr double kLogZero = -1e30;

// `iterations`: each has a row step, then a column step. `last_rows`: end with another row step.
struct Sizes {
  int64_t count, size, iterations, causal, last_rows, threads;

  int64_t steps() const { return 2 * iterations + last_rows; }
};

// `size` x `size` matrices; `live` is 1 for live entries. `grad_sort` is null in the forward pass.
// `out` is the sort matrix in the forward pass, and the gradient of the scores in the backward
// pass.
template <class A>
struct Problem {
  Sizes sizes;
  const A* scores;
  const uint8_t* live;
  const A* grad_sort;
  A* out;
};

// Memory of one thread: matrices with rows of whole vectors. `dead` is 0 at live entries and
// kLogZero elsewhere. `steps` are the logarithms; the backward pass keeps them after each step.
template <class A>
struct Scratch {
  const int64_t row, area;
  Buffer<A> dead, grad, steps;

  RIFFLEMIX_INLINE explicit Scratch(const Problem<A>& p)
      : row((p.sizes.size + kLanes<A> - 1) / kLanes<A> * kLanes<A>), area(p.sizes.size * row),
        dead(area), grad(p.grad_sort == nullptr ? 0 : area),
        steps(area * (p.grad_sort == nullptr ? 1 : p.sizes.steps() + 1)) {}
};

template <class A>
RIFFLEMIX_INLINE Vector<A> live_or_zero(Vector<A> r, const A* dead) {
  const Vector<A> d = load(dead);
  return select<A>(d < A(0), d, r);
}

template <class A>
RIFFLEMIX_INLINE void normalise_rows(const Scratch<A>& s, const A* from, A* to) {
  for (int64_t i = 0; i < s.area; i += s.row) {
    Vector<A> most = load(from + i), sums{};
    for (int64_t j = kLanes<A>; j < s.row; j += kLanes<A>) {
      const Vector<A> x = load(from + i + j);
      most = select<A>(x > most, x, most);
    }
    A largest = most[0];
    for (int lane = 1; lane < kLanes<A>; ++lane) {
      largest = most[lane] > largest ? most[lane] : largest;
    }
    for (int64_t j = 0; j < s.row; j += kLanes<A>) {
      sums += exp_of_negative<A>(load(from + i + j) - largest);
    }
    const A all = largest + std::log(sum_lanes<A>(sums));
    for (int64_t j = 0; j < s.row; j += kLanes<A>) {
      store(to + i + j, live_or_zero<A>(load(from + i + j) - all, &s.dead[i + j]));
    }
  }
}

template <class A>
RIFFLEMIX_INLINE void normalise_columns(const Scratch<A>& s, const A* from, A* to) {
  for (int64_t j = 0; j < s.row; j += kLanes<A>) {
    Vector<A> most = load(from + j), sums{};
    for (int64_t i = s.row; i < s.area; i += s.row) {
      const Vector<A> x = load(from + i + j);
      most = select<A>(x > most, x, most);
    }
    for (int64_t i = 0; i < s.area; i += s.row) {
      sums += exp_of_negative<A>(load(from + i + j) - most);
    }
    for (int lane = 0; lane < kLanes<A>; ++lane) most[lane] += std::log(sums[lane]);
    for (int64_t i = 0; i < s.area; i += s.row) {
      store(to + i + j, live_or_zero<A>(load(from + i + j) - most, &s.dead[i + j]));
    }
  }
}

// Causal column step.
template <class A>
RIFFLEMIX_INLINE void normalise_columns_so_far(const Scratch<A>& s, const A* from, A* to) {
  for (int64_t j = 0; j < s.row; j += kLanes<A>) {
    Vector<A> most = load(from + j), sum{};
    for (int64_t i = 0; i < s.area; i += s.row) {
      const Vector<A> x = load(from + i + j), above = x - most;
      const Vector<A> share = exp_of_negative<A>(above > A(0) ? -above : above);
      sum = above > A(0) ? sum * share + A(1) : sum + share;
      most = above > A(0) ? x : most;
      Vector<A> all;
      for (int lane = 0; lane < kLanes<A>; ++lane) all[lane] = std::log(sum[lane]);
      store(to + i + j, live_or_zero<A>(x - (most + all), &s.dead[i + j]));
    }
  }
}

// Computes the logarithms of a matrix after all steps.
template <class A>
RIFFLEMIX_INLINE const A* balance(const Problem<A>& p, Scratch<A>& s, int64_t index) {
  const int64_t size = p.sizes.size;
  const A* scores = p.scores + index * size * size;
  const uint8_t* live = p.live + index * size * size;
  A* at = s.steps.data();
  std::fill(s.dead.begin(), s.dead.end(), static_cast<A>(kLogZero));
  std::fill(at, at + s.area, static_cast<A>(kLogZero));
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      if (!live[i * size + j]) continue;
      s.dead[i * s.row + j] = A(0);
      at[i * s.row + j] = scores[i * size + j];
    }
  }
  const int64_t next = p.grad_sort == nullptr ? 0 : s.area;
  for (int64_t n = 0; n < p.sizes.steps(); ++n, at += next) {
    if (n % 2 == 0) {
      normalise_rows<A>(s, at, at + next);
    } else if (p.sizes.causal) {
      normalise_columns_so_far<A>(s, at, at + next);
    } else {
      normalise_columns<A>(s, at, at + next);
    }
  }
  return at;
}

// Converts the gradient of the logarithms after a step to the gradient before the step. `after` are
// the logarithms after the step.
template <class A>
RIFFLEMIX_INLINE void backward_columns(const Scratch<A>& s, const A* after, A* grad) {
  for (int64_t j = 0; j < s.row; j += kLanes<A>) {
    Vector<A> sum{};
    for (int64_t i = 0; i < s.area; i += s.row) sum += load(grad + i + j);
    for (int64_t i = 0; i < s.area; i += s.row) {
      store(grad + i + j, load(grad + i + j) - exp_of_negative<A>(load(after + i + j)) * sum);
    }
  }
}

template <class A>
RIFFLEMIX_INLINE void backward_rows(const Scratch<A>& s, const A* after, A* grad) {
  for (int64_t i = 0; i < s.area; i += s.row) {
    Vector<A> sums{};
    for (int64_t j = 0; j < s.row; j += kLanes<A>) sums += load(grad + i + j);
    const A sum = sum_lanes<A>(sums);
    for (int64_t j = 0; j < s.row; j += kLanes<A>) {
      store(grad + i + j, load(grad + i + j) - exp_of_negative<A>(load(after + i + j)) * sum);
    }
  }
}

// Causal column step: c is the difference of the logarithms before and after the step.
template <class A>
RIFFLEMIX_INLINE void backward_columns_so_far(const Scratch<A>& s, const A* before, const A* after,
                                              A* grad) {
  for (int64_t j = 0; j < s.row; j += kLanes<A>) {
    Vector<A> next = spread<A>(static_cast<A>(-kLogZero)), total{};
    for (int64_t i = s.area - s.row + j; i >= 0; i -= s.row) {
      const Vector<A> r = load(after + i), gradient = load(grad + i), sum = load(before + i) - r;
      const auto live = load(&s.dead[i]) == A(0);
      const Vector<A> less = sum > next ? Vector<A>{} : sum - next;
      const Vector<A> all = gradient + exp_of_negative<A>(less) * total;
      total = select<A>(live, all, total);
      next = select<A>(live, sum, next);
      store(grad + i, gradient - exp_of_negative<A>(r) * total);
    }
  }
}

// Writes exp of the logarithms, the sort matrix.
template <class A>
RIFFLEMIX_INLINE void find_sort(const Problem<A>& p, Scratch<A>& s, int64_t index) {
  const A* logs = balance<A>(p, s, index);
  const int64_t size = p.sizes.size;
  A* out = p.out + index * size * size;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; j += kLanes<A>) {
      store(out + i * size + j, exp_of_negative<A>(load(logs + i * s.row + j)), size - j);
    }
  }
}

template <class A>
RIFFLEMIX_INLINE void find_gradient(const Problem<A>& p, Scratch<A>& s, int64_t index) {
  const A* logs = balance<A>(p, s, index);
  const int64_t size = p.sizes.size, start = index * size * size;
  A* grad = s.grad.data();
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < s.row; j += kLanes<A>) {
      const Vector<A> by_sort = load(p.grad_sort + start + i * size + j, size - j);
      store(grad + i * s.row + j, by_sort * exp_of_negative<A>(load(logs + i * s.row + j)));
    }
  }
  for (int64_t n = p.sizes.steps(); n > 0; --n, logs -= s.area) {
    if (n % 2 == 1) {
      backward_rows<A>(s, logs, grad);
    } else if (p.sizes.causal) {
      backward_columns_so_far<A>(s, logs - s.area, logs, grad);
    } else {
      backward_columns<A>(s, logs, grad);
    }
  }
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; j += kLanes<A>) {
      store(p.out + start + i * size + j, load(grad + i * s.row + j), size - j);
    }
  }
}

#define RIFFLEMIX_BALANCE(A)                                                                 \
  RIFFLEMIX_DISPATCH(void, balance_some, (const Problem<A>& p, int64_t first, int64_t last), \
                     (p, first, last), {                                                     \
    Scratch<A> s(p);                                                                         \
    for (int64_t i = first; i < last; ++i) {                                                 \
      p.grad_sort == nullptr ? find_sort<A>(p, s, i) : find_gradient<A>(p, s, i);            \
    }                                                                                        \
  })
RIFFLEMIX_BALANCE(float)
RIFFLEMIX_BALANCE(double)

template <class A>
int run(const Problem<A>& p) {
  return guarded([&] {
    parallel_for(p.sizes.count, static_cast<int>(p.sizes.threads),
                 [&](int64_t first, int64_t last) { balance_some(p, first, last); });
    return 0;
  });
}

}  // namespace rifflemix::balance

#define RIFFLEMIX_SINKHORN(name, A)                                                              \
  RIFFLEMIX_EXPORT int rifflemix_balance_##name(const rifflemix::balance::Sizes* sizes,          \
                                                const A* scores, const uint8_t* live,            \
                                                const A* grad_sort, A* out) {                    \
    return rifflemix::balance::run<A>({*sizes, scores, live, grad_sort, out});                   \
  }
RIFFLEMIX_SINKHORN(float32, float)
RIFFLEMIX_SINKHORN(float64, double)
