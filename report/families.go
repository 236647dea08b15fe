package report

// familyMeanings are what families of inputs are made of, as kwharness/numerics/families.py makes them, which says it in short.
var familyMeanings = map[string]string{
	"base":          "as the reference draws it",
	"scaled_up":     "times 100",
	"scaled_down":   "divided by 1000",
	"negated":       "with the sign changed",
	"heavy_tails":   "a few values very large",
	"spikes":        "one value in 128 times 100",
	"shifted":       "moved by 30 root mean squares",
	"all_equal":     "one value everywhere",
	"zeros":         "zeros",
	"denormals":     "values around 1e-40",
	"near_overflow": "values near the largest number",
	"planted":       "with NaN and infinity in places",
	"permuted":      "in another order",
	"ordered":       "sorted, or large values together",
	"few_terms":     "all but a few rows tiny",
	"few_factors":   "zeros but for a few terms of each product",
	"repeated":      "one row over and over",
	"boundaries":    "moved to where the reference rounds or compares",
	"one_element":   "one value moved far",
	"zero_one":      "zeros and ones",
}
