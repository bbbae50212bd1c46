package adapters

import (
	"fmt"
	"strconv"
	"time"
)

// stripeEventSample is the frame of a v1 event; the object's fields follow Stripe's API reference
// (https://docs.stripe.com/api/events/object).
const stripeEventSample = `{
  "id": "{event}",
  "object": "event",
  "api_version": "2025-09-30.clover",
  "created": {at},
  "data": {
    "object": {object}
  },
  "livemode": false,
  "pending_webhooks": 1,
  "request": {
    "id": "req_{token}",
    "idempotency_key": "{uuid}"
  },
  "type": "{type}"
}
`

const stripePaymentIntentSample = `{
      "id": "pi_3Weir{seq}",
      "object": "payment_intent",
      "amount": 2000,
      "amount_received": {received},
      "capture_method": "automatic_async",
      "client_secret": null,
      "confirmation_method": "automatic",
      "created": {at},
      "currency": "usd",
      "customer": "cus_Weir{seq}",
      "description": "Order {seq}",
      "last_payment_error": {error},
      "latest_charge": {charge},
      "livemode": false,
      "metadata": {
        "order_id": "{seq}"
      },
      "payment_method_types": [
        "card"
      ],
      "status": "{status}"
    }`

const stripeSubscriptionSample = `{
      "id": "sub_1Weir{seq}",
      "object": "subscription",
      "billing_cycle_anchor": {at},
      "cancel_at_period_end": false,
      "canceled_at": {canceled},
      "collection_method": "charge_automatically",
      "created": {at},
      "currency": "usd",
      "customer": "cus_Weir{seq}",
      "items": {
        "object": "list",
        "data": [
          {
            "id": "si_Weir{seq}",
            "object": "subscription_item",
            "current_period_end": {end},
            "current_period_start": {at},
            "price": {
              "id": "price_1WeirMonthly",
              "object": "price",
              "currency": "usd",
              "product": "prod_WeirBasic",
              "recurring": {
                "interval": "month",
                "interval_count": 1
              },
              "unit_amount": 2000
            },
            "quantity": 1,
            "subscription": "sub_1Weir{seq}"
          }
        ],
        "has_more": false,
        "total_count": 1
      },
      "livemode": false,
      "metadata": {},
      "status": "{status}"
    }`

const stripeInvoiceSample = `{
      "id": "in_1Weir{seq}",
      "object": "invoice",
      "amount_due": 2000,
      "amount_paid": 2000,
      "amount_remaining": 0,
      "billing_reason": "subscription_cycle",
      "created": {at},
      "currency": "usd",
      "customer": "cus_Weir{seq}",
      "customer_email": "ada.{seq}@example.com",
      "hosted_invoice_url": "https://invoice.example.com/i/{seq}",
      "lines": {
        "object": "list",
        "data": [
          {
            "id": "il_1Weir{seq}",
            "object": "line_item",
            "amount": 2000,
            "currency": "usd",
            "description": "1 × Basic (at $20.00 / month)",
            "quantity": 1
          }
        ],
        "has_more": false,
        "total_count": 1
      },
      "livemode": false,
      "number": "WEIR-{seq}",
      "status": "paid",
      "total": 2000
    }`

const stripeRefundSample = `{
      "id": "re_3Weir{seq}",
      "object": "refund",
      "amount": 500,
      "charge": "ch_3Weir{seq}",
      "created": {at},
      "currency": "usd",
      "metadata": {},
      "payment_intent": "pi_3Weir{seq}",
      "reason": "requested_by_customer",
      "status": "{status}"
    }`

const stripeDisputeSample = `{
      "id": "dp_1Weir{seq}",
      "object": "dispute",
      "amount": 2000,
      "charge": "ch_3Weir{seq}",
      "created": {at},
      "currency": "usd",
      "evidence_details": {
        "due_by": {end},
        "has_evidence": false,
        "past_due": false,
        "submission_count": 0
      },
      "is_charge_refundable": false,
      "livemode": false,
      "payment_intent": "pi_3Weir{seq}",
      "reason": "fraudulent",
      "status": "{status}"
    }`

const stripeAccountSample = `{
      "id": "acct_1Weir{seq}",
      "object": "account",
      "charges_enabled": true,
      "created": {at},
      "country": "DE",
      "default_currency": "eur",
      "details_submitted": true,
      "payouts_enabled": false,
      "requirements": {
        "currently_due": ["external_account"],
        "disabled_reason": null
      },
      "type": "standard"
    }`

var stripeSamples = []struct {
	typ, object, status, received, charge, failure, canceled string
}{
	{typ: "invoice.paid", object: stripeInvoiceSample},
	{typ: "payment_intent.created", object: stripePaymentIntentSample, status: "requires_payment_method", received: "0", charge: "null", failure: "null"},
	{typ: "payment_intent.succeeded", object: stripePaymentIntentSample, status: "succeeded", received: "2000", charge: `"ch_3Weir{seq}"`, failure: "null"},
	{typ: "payment_intent.payment_failed", object: stripePaymentIntentSample, status: "requires_payment_method", received: "0", charge: `"ch_3Weir{seq}"`, failure: `{"code": "card_declined", "decline_code": "generic_decline", "type": "card_error"}`},
	{typ: "customer.subscription.created", object: stripeSubscriptionSample, status: "active", canceled: "null"},
	{typ: "customer.subscription.updated", object: stripeSubscriptionSample, status: "past_due", canceled: "null"},
	{typ: "customer.subscription.deleted", object: stripeSubscriptionSample, status: "canceled", canceled: "{at}"},
	{typ: "refund.created", object: stripeRefundSample, status: "succeeded"},
	{typ: "charge.dispute.created", object: stripeDisputeSample, status: "needs_response"},
	{typ: "account.updated", object: stripeAccountSample},
}

// SampleTypes implements Sampler.
func (Stripe) SampleTypes() []string {
	types := make([]string, 0, len(stripeSamples))
	for _, s := range stripeSamples {
		types = append(types, s.typ)
	}
	return types
}

// Sample implements Sampler. The types of one kind share their object for one seq: payment_intent.created and
// payment_intent.succeeded with seq 7 tell the life of one payment.
func (Stripe) Sample(typ string, seq int, at time.Time) (id string, body []byte, err error) {
	for _, s := range stripeSamples {
		if s.typ != typ {
			continue
		}
		id = "evt_1" + sampleToken(23, typ, seq, at)
		object := fillSample(s.object, "{status}", s.status, "{received}", s.received, "{charge}", s.charge,
			"{error}", s.failure, "{canceled}", s.canceled)
		body = fillSample(stripeEventSample, "{object}", string(object), "{event}", id, "{type}", typ,
			"{token}", sampleToken(14, "request", seq, at), "{uuid}", sampleUUID("request", seq, at))
		body = fillSample(string(body), "{seq}", fmt.Sprintf("%016d", seq), "{at}", strconv.FormatInt(at.Unix(), 10),
			"{end}", strconv.FormatInt(at.AddDate(0, 1, 0).Unix(), 10))
		return id, body, nil
	}
	return "", nil, fmt.Errorf("adapters: stripe: no sample of type %q", typ)
}
