r"""The theory of arXiv:2608.30315, derived step by step with SymPy: one function per equation.

=================  ==================================================================
``notation``       the paper's letters as symbols, made in one place
``identities``     whether two expressions are the same
``typesetting``    an equation as a numbered display that the text can refer to
``joint``          signatures of a generic distribution (section 3.2)
``softmax``        the small-logit expansion of the residual, with its remainder
``feed_forward``   Theorem 1: from the cross-entropy to the sum over signature orders
``magnitudes``     Proposition 1: what initialization makes of each order
``counting``       Proposition 2: how many terms each order has
``attention``      Theorem 3: value, key and query parts
``paths``          direct, attention and FFN paths of a Transformer block
``min_max``        the additive rule of section 7 and its margin
=================  ==================================================================

Wherever a result is called *derived*, it comes out of differentiating a loss whose parameters are
symbols; the closed form that the paper displays is written down separately, and the two are
compared. Imports SymPy and the standard library only.
"""
