// Activations between linear layers, and their derivatives.

#pragma once

#include "vector.h"

namespace rifflemix {

// The same numbers are used in ops/butterfly/cpu.py.
enum Activation : int64_t { kNone = 0, kGelu = 1, kElu = 2 };

// Standard normal distribution function at x, given bell = exp(-x^2 / 2). In float32 the tail
// min(result, 1 - result) is bell times a polynomial of v = 1 / (1 + 0.35 |x|), with relative
// error 3e-8.
template <class A, int kBytes>
RIFFLEMIX_INLINE Vector<A, kBytes> normal_below(Vector<A, kBytes> x, Vector<A, kBytes> bell) {
  using Values = Vector<A, kBytes>;
  if constexpr (sizeof(A) == 4) {
    const Values v = 1.0f / (1.0f + 0.35f * (x < 0.0f ? -x : x));
    Values p = Values{} - 0.0291088879f;
    p = p * v + 0.143788010f;
    p = p * v - 0.255326831f;
    p = p * v + 0.158721508f;
    p = p * v - 0.0227904018f;
    p = p * v + 0.105369051f;
    p = p * v + 0.119869125f;
    p = p * v + 0.139856700f;
    p = p * v + 0.139621712f;
    const Values tail = p * v * bell;
    return x < 0.0f ? tail : 1.0f - tail;
  } else {
    for (int i = 0; i < kBytes / 8; ++i) x[i] = 0.5 * std::erfc(x[i] * -0.70710678118654752);
    return x;
  }
}

// Computes y = act(x) in place for `count` numbers in whole vectors, and dy/dx if `slopes` is not
// null.
template <class A, int kBytes>
RIFFLEMIX_INLINE void activate(int64_t kind, int64_t count, A* x, A* slopes) {
  using Values = Vector<A, kBytes>;
  constexpr int64_t lanes = kBytes / sizeof(A);
  for (int64_t i = 0; i < count && kind == kGelu; i += lanes) {
    const Values v = load_as<Values>(x + i);
    const Values bell = exp_of_negative<A, kBytes>(v * v * A(-0.5));
    const Values below = normal_below<A, kBytes>(v, bell);
    store_as(x + i, v * below);
    if (slopes != nullptr) store_as(slopes + i, below + v * bell * A(0.398942280401432678));
  }
  for (int64_t i = 0; i < count && kind == kElu; i += lanes) {
    const Values v = load_as<Values>(x + i);
    const Values less = exp_less_one<A, kBytes>(v < A(0) ? v : Values{});
    store_as(x + i, v < A(0) ? less : v);
    if (slopes != nullptr) store_as(slopes + i, v < A(0) ? less + A(1) : Values{} + A(1));
  }
}

}  // namespace rifflemix
