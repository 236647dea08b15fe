// Runs what the skills' C++ fragments define against plain code, and prints a line for each result that is off. Built
// together with them by TestFragmentsInCPP.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

extern "C" {
double lane_sum(const float* x, long long n);
void welford(const float* x, long long n, double* mean, double* variance);
void cumsum_8_rows(const float* x, float* y, long long n, long long stride);
void gemm_panel(const float* A, long long lda, const float* B, float* C, long long ldc, long long rows, long long k);
void depthwise_row(const float* x, const float* k, float* y, long long H, long long W);
void max_pool_plane(const float* x, float* y, long long H, long long W, long long PH, long long PW);
float compensated_sum(const float* x, long long n);
void silu_cpu(const float* x, float* y, long long n);
void softmax_cpu(const float* x, float* y, long long rows, long long columns);
void affine_streamed(const float* x, float* out, long long n, float a, float b);
}

typedef std::vector<float> Vector;

static std::mt19937 generator(7);
static int failures = 0;

static Vector draw(long long n, float mean = 0, float scale = 1) {
    std::normal_distribution<float> normal(mean, scale);
    Vector v(n);
    for (float& x : v) x = normal(generator);
    return v;
}

// What is off by more than relative * |want| + absolute; NaN has to meet NaN, and infinity the same one.
static void expect(const char* what, long long size, double got, double want, double relative, double absolute) {
    const bool same = std::isnan(want) ? std::isnan(got) : std::isinf(want) ? got == want : std::fabs(got - want) <= relative * std::fabs(want) + absolute;
    if (same) return;
    if (failures++ < 20) std::printf("%s, size %lld: got %.9g, want %.9g\n", what, size, got, want);
}

static const float INF = std::numeric_limits<float>::infinity(), NOT = std::numeric_limits<float>::quiet_NaN();
static const long long SIZES[] = {1, 2, 7, 16, 31, 32, 33, 100, 1024, 4097, 100003};

static void sums() {
    for (long long n : SIZES) {
        const Vector x = draw(n, 3);
        double sum = 0, size = 0;
        for (float v : x) sum += v, size += std::fabs(v);
        expect("lane_sum", n, lane_sum(x.data(), n), sum, 0, 2e-6 * size);
        expect("compensated_sum", n, compensated_sum(x.data(), n), sum, 1e-7, 0);
    }
    Vector big(48, 0.f);  // all in one lane
    big[0] = 1e30f, big[16] = 1, big[32] = -1e30f;
    expect("compensated_sum, cancelling", 48, compensated_sum(big.data(), 48), 1, 0, 0);
    Vector hard(3200, 0.1f);
    hard[0] = 1e8f;
    double sum = 0;
    for (float v : hard) sum += v;
    expect("compensated_sum, one large", 3200, compensated_sum(hard.data(), 3200), sum, 1e-7, 0);
    hard[40] = INF;
    expect("compensated_sum, infinity", 3200, compensated_sum(hard.data(), 3200), INF, 0, 0);
    hard[41] = NOT;
    expect("compensated_sum, NaN", 3200, compensated_sum(hard.data(), 3200), NOT, 0, 0);
}

static void softmaxes() {
    for (long long n : SIZES)
        for (float mean : {0.f, 200.f, -3000.f}) {
            Vector x = draw(n, mean, 4), y(3 * n), three;
            for (int r = 0; r < 3; r++) three.insert(three.end(), x.begin(), x.end());
            double m = -INF, s = 0;
            for (float v : x) m = std::fmax(m, v);
            for (float v : x) s += std::exp(v - m);
            softmax_cpu(three.data(), y.data(), 3, n);
            for (long long i = 0; i < 3 * n; i++) expect("softmax", n, y[i], std::exp(three[i] - m) / s, 1e-5, 1e-37);
        }
    Vector x(40, -INF), y(40);
    softmax_cpu(x.data(), y.data(), 1, 40);
    expect("softmax of -inf alone", 40, y[0], NOT, 0, 0);
    x[3] = 1;
    softmax_cpu(x.data(), y.data(), 1, 40);
    for (int i = 0; i < 40; i++) expect("softmax with -inf", 40, y[i], i == 3, 0, 0);
    x[39] = NOT;
    softmax_cpu(x.data(), y.data(), 1, 40);
    expect("softmax with NaN", 40, y[3], NOT, 0, 0);
}

// silu_cpu goes by the polynomial for exp, so it is tried over all of its range.
static void exponentials() {
    Vector x = {0.f, -0.f, 88.5f, -88.5f, 104.f, -104.f, 1e38f, -1e38f, 1e-40f, INF, NOT};
    for (int i = -100000; i <= 100000; i++) x.push_back(i * 1.1e-3f);
    Vector y(x.size());
    silu_cpu(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); i++) expect("silu", i, y[i], x[i] / (1 + std::exp(-(double)x[i])), 4e-7, 1e-36);
    const float low = -INF;
    float out;
    silu_cpu(&low, &out, 1);
    expect("silu of -inf", 1, out, NOT, 0, 0);
}

static void moments() {
    for (long long n : SIZES)
        for (float mean : {0.f, 30.f, -1000.f}) {
            const Vector x = draw(n, mean);
            double sum = 0, square = 0, gm, gv;
            for (float v : x) sum += v;
            for (float v : x) square += (v - sum / n) * (v - sum / n);
            welford(x.data(), n, &gm, &gv);
            expect("mean", n, gm, sum / n, 1e-6, 1e-6);
            expect("variance", n, gv, square / n, 1e-5, 1e-9);
        }
    const Vector same(5000, 3333.f), none;
    double m, v;
    welford(same.data(), 5000, &m, &v);
    expect("mean of equal values", 5000, m, 3333, 0, 0);
    expect("variance of equal values", 5000, v, 0, 0, 0);
    welford(none.data(), 0, &m, &v);
    expect("variance of nothing", 0, v, 0, 0, 0);
}

static void scans() {
    for (long long n : SIZES) {
        Vector x = draw(8 * n), y(8 * n);
        if (n > 40) x[n + 33] = INF;
        cumsum_8_rows(x.data(), y.data(), n, n);
        for (int r = 0; r < 8; r++) {
            double sum = 0, size = 0;
            for (long long i = 0; i < n; i++) {
                sum += x[r * n + i];
                size += std::isinf(x[r * n + i]) ? 0 : std::fabs(x[r * n + i]);
                expect("cumsum", n, y[r * n + i], sum, 0, 1e-5 * size);
            }
        }
    }
}

static void products() {
    for (long long rows : {1, 3, 4, 9})
        for (long long k : {1, 17, 300}) {
            const Vector a = draw(rows * k), b = draw(k * 32), before = draw(rows * 40);
            Vector c = before;
            gemm_panel(a.data(), k, b.data(), c.data(), 40, rows, k);
            for (long long i = 0; i < rows; i++)
                for (long long j = 0; j < 40; j++) {
                    double want = before[i * 40 + j];
                    for (long long p = 0; j < 32 && p < k; p++) want += (double)a[i * k + p] * b[p * 32 + j];
                    expect("product", rows * 1000 + k, c[i * 40 + j], want, 1e-5, 1e-4);
                }
        }
}

static void windows() {
    for (long long H : {1, 2, 5, 16})
        for (long long W : {1, 2, 3, 33}) {
            Vector x = draw(H * W);
            const Vector k = draw(9);
            Vector y(H * W);
            depthwise_row(x.data(), k.data(), y.data(), H, W);
            for (long long p = 0; p < H; p++)
                for (long long q = 0; q < W; q++) {
                    double want = 0;
                    for (int r = 0; r < 3; r++)
                        for (int s = 0; s < 3; s++) {
                            const long long h = p + r - 1, w = q + s - 1;
                            if (h >= 0 && h < H && w >= 0 && w < W) want += (double)k[r * 3 + s] * x[h * W + w];
                        }
                    expect("depthwise", H * 100 + W, y[p * W + q], want, 1e-5, 1e-5);
                }
            if (H * W > 8) x[H * W / 2] = NOT;
            const long long PH = (H - 1) / 2 + 1, PW = (W - 1) / 2 + 1;
            Vector pooled(PH * PW);
            max_pool_plane(x.data(), pooled.data(), H, W, PH, PW);
            for (long long p = 0; p < PH; p++)
                for (long long q = 0; q < PW; q++) {
                    float want = -INF;
                    for (long long h = p * 2 - 1; h < p * 2 + 2; h++)
                        for (long long w = q * 2 - 1; w < q * 2 + 2; w++)
                            if (h >= 0 && h < H && w >= 0 && w < W && !std::isnan(want)) want = std::isnan(x[h * W + w]) ? NOT : std::fmax(want, x[h * W + w]);
                    expect("max pooling", H * 100 + W, pooled[p * PW + q], want, 0, 0);
                }
        }
}

static void streams() {
    for (long long n : SIZES)
        for (int off : {0, 1, 3}) {  // outputs at any 4-byte address
            const Vector x = draw(n);
            Vector out(n + 8, 42.f);
            affine_streamed(x.data(), out.data() + off, n, 2, 1);
            for (long long i = 0; i < n; i++) expect("affine", n, out[off + i], 2.0 * x[i] + 1, 2e-7, 1e-6);
            for (long long i = 0; i < 8; i++) expect("affine, outside", n, out[i < off ? i : n + i], 42, 0, 0);
        }
}

int main() {
    sums();
    softmaxes();
    exponentials();
    moments();
    scans();
    products();
    windows();
    streams();
    if (failures) std::printf("%d results are off\n", failures);
    return failures != 0;
}
