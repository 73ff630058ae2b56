#pragma once
#define NAN         __builtin_nanf("")
#define INFINITY    __builtin_inff()
#define HUGE_VAL    __builtin_inf()
#define M_PI        3.14159265358979323846264338327950288
#define M_SQRT1_2   0.707106781186547524400844362104849039
#define M_SQRT2     1.41421356237309504880168872420969808
#define M_LN2       0.693147180559945309417232121458176568
#define isnan(x)    __builtin_isnan(x)
#define isinf(x)    __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x)  __builtin_signbit(x)
double exp(double);
float expf(float);
double exp2(double);
float exp2f(float);
double expm1(double);
float expm1f(float);
double log(double);
float logf(float);
double log2(double);
float log2f(float);
double log10(double);
float log10f(float);
double log1p(double);
float log1pf(float);
double sqrt(double);
float sqrtf(float);
double cbrt(double);
float cbrtf(float);
double sin(double);
float sinf(float);
double cos(double);
float cosf(float);
double tan(double);
float tanf(float);
double asin(double);
float asinf(float);
double acos(double);
float acosf(float);
double atan(double);
float atanf(float);
double sinh(double);
float sinhf(float);
double cosh(double);
float coshf(float);
double tanh(double);
float tanhf(float);
double erf(double);
float erff(float);
double erfc(double);
float erfcf(float);
double fabs(double);
float fabsf(float);
double floor(double);
float floorf(float);
double ceil(double);
float ceilf(float);
double trunc(double);
float truncf(float);
double round(double);
float roundf(float);
double rint(double);
float rintf(float);
double nearbyint(double);
float nearbyintf(float);
double tgamma(double);
float tgammaf(float);
double lgamma(double);
float lgammaf(float);
double pow(double, double);
float powf(float, float);
double fmod(double, double);
float fmodf(float, float);
double fmin(double, double);
float fminf(float, float);
double fmax(double, double);
float fmaxf(float, float);
double atan2(double, double);
float atan2f(float, float);
double hypot(double, double);
float hypotf(float, float);
double copysign(double, double);
float copysignf(float, float);
double nextafter(double, double);
float nextafterf(float, float);
double remainder(double, double);
float remainderf(float, float);
double fdim(double, double);
float fdimf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
double ldexp(double, int);
float ldexpf(float, int);
double scalbn(double, int);
float scalbnf(float, int);
double frexp(double, int *);
float frexpf(float, int *);
double modf(double, double *);
float modff(float, float *);
long lround(double);
long lroundf(float);
long lrint(double);
long lrintf(float);
long long llround(double);
long long llrint(double);
long long llroundf(float);
int ilogb(double);
int ilogbf(float);
